"""What an exit code means, and the error that ends a command with one."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended; `MEANINGS` says it in words."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOTHING_TO_DO = 4
    INTERRUPTED = 130
    """128 and the number of SIGINT, as shells have it."""


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "all is well",
    ExitCode.FAILED: "something is wrong with what was looked at: a rule is broken, an answer is not whole",
    ExitCode.USAGE: "the command was called in a way that it cannot follow; one line on standard error says what to do",
    ExitCode.UNREACHABLE: "what it needs from outside could not be reached, or did not answer in time",
    ExitCode.NOTHING_TO_DO: "nothing ran, since there was nothing to look at; never a pass",
    ExitCode.INTERRUPTED: "it was interrupted by Ctrl-C",
}


class UsageError(Exception):
    """The user can mend this: the message says how."""
