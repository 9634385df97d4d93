"""What an exit code means, and the error that ends a command with one."""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended; `MEANINGS` says it in words."""

    RIGHT = 0
    FOUND = 1
    USAGE = 2
    UNREACHABLE = 3
    NOTHING = 4
    INTERRUPTED = 130
    """128 and the number of SIGINT, as shells have it."""


MEANINGS = {
    Exit.RIGHT: "all is well",
    Exit.FOUND: "something is wrong with what was looked at: a rule is broken, an answer is not whole",
    Exit.USAGE: "the command was called in a way that it cannot follow; one line on standard error says what to do",
    Exit.UNREACHABLE: "what it needs from outside could not be reached, or did not answer in time",
    Exit.NOTHING: "nothing ran, since there was nothing to look at; never a pass",
    Exit.INTERRUPTED: "it was interrupted by Ctrl-C",
}


class UsageError(Exception):
    """The user can mend this: the message says how."""
