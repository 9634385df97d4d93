"""`python -m welldone`."""

import sys

from welldone.cli.main import run

sys.exit(run())
