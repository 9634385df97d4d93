"""Entry point of `welldone` and `python -m welldone`."""

import sys


def main() -> int:
    """Run a command. Ctrl-C ends it quietly, also while the modules of the command are imported."""
    try:
        from welldone.cli.main import run

        return run()
    except KeyboardInterrupt:
        return 130  # ExitCode.INTERRUPTED, whose module may not be imported yet


if __name__ == "__main__":
    sys.exit(main())
