"""The child program around a user's command: `python -m welldone.engines.command_child PARENT COMMAND…`.

The command runs in a process group of its own. SIGTERM is handed on to the group. When standard input ends (the parent
has had enough, or is gone) the group is killed; also when the command itself is done, so that no worker of it is left.
Where this program is killed itself, a guard does that: a fork that waits for nothing else. There is one thread here, so
that a fork is safe.
"""

import contextlib
import os
import select
import signal
import sys

from welldone.engines.parent_death import signal_on_parent_death

CANNOT_RUN_EXIT_CODE = 127
"""The exit code with which shells say the same."""


def run(parent: int, command: list[str]) -> int:
    """The command's exit code; 128 and the signal's number if a signal ended it."""
    news = _open_signal_pipe()
    signal_on_parent_death(signal.SIGTERM, parent)
    pid = _spawn(command)
    rope = _fork_guard(pid)
    code = _wait_for_exit(pid, news)
    _signal_group(pid, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError):  # somebody has ended the guard
        os.write(rope, b"done")
    if code is None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _open_signal_pipe() -> int:
    """A pipe in which a byte comes for each signal."""
    news, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # without a handler no byte comes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which lets running requests finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as the parent does: service managers signal all processes
    return news


def _spawn(command: list[str]) -> int:
    own = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal_on_parent_death(signal.SIGKILL, own)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_RUN_EXIT_CODE)


def _fork_guard(pid: int) -> int:
    """A process that kills the group when we are gone, unless it was told that this is done; where to tell it."""
    end, rope = os.pipe()
    if os.fork():
        os.close(end)
        return rope
    os.close(rope)
    os.setsid()
    signal.set_wakeup_fd(-1)  # what it is sent is not for us
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not os.read(end, 4):
        _signal_group(pid, signal.SIGKILL)
    os._exit(0)


def _wait_for_exit(pid: int, signal_pipe: int) -> int | None:
    """The command's exit code when it is done; None when standard input ended first."""
    while True:
        readable, _, _ = select.select([0, signal_pipe], [], [])
        if 0 in readable and not os.read(0, 4096):
            return None
        if signal_pipe in readable and signal.SIGTERM in os.read(signal_pipe, 4096):
            _signal_group(pid, signal.SIGTERM)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # nobody is left; macOS says the second where only zombies are
        return


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
