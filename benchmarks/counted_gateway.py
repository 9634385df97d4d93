"""`welldone` with the given arguments, run by `instructions.py` under callgrind.

Each line of standard input marks a part, and is answered by the line `marked`.
"""

import gc
import itertools
import os
import sys
import threading
import time
from functools import partial

from welldone.__main__ import main

from callgrind import mark  # isort: skip  # same folder: a script's own folder is on the path


def mark_each_line() -> None:
    """Mark a part for each line."""
    for _ in sys.stdin.buffer:
        mark()
        os.write(sys.stdout.fileno(), b"marked\n")


if __name__ == "__main__":
    gc.disable()  # a collection that falls into one of both parts would be a difference of their requests
    # Work is split by time, which passes 50 times as fast here: instead, a clock that ticks when it is read.
    time.monotonic = partial(next, itertools.count(time.monotonic(), 1e-6))
    sys.setswitchinterval(1e6)  # a thread that waits for the interpreter would interrupt at any time
    threading.Thread(target=mark_each_line, daemon=True).start()
    sys.exit(main())
