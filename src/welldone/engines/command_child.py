"""Child program that runs a user's command: `python -m welldone.engines.command_child PARENT COMMAND…`.

The command runs in its own process group. SIGTERM is forwarded to the group. The group is killed when standard input
ends (the parent stops it, or is dead), and when the command exits, so that none of its workers is left. If this program
itself is killed, a forked guard process kills the group. The program has one thread, so that fork is safe.
"""

import contextlib
import os
import select
import signal
import sys

from welldone.engines.parent_death import offer_to_oom_killer, signal_on_parent_death

CANNOT_RUN_EXIT_CODE = 127
"""Exit code of shells for a command that cannot be executed."""


def run(parent: int, command: list[str]) -> int:
    """Run the command and return its exit code: 128 plus the signal number if a signal ended it."""
    signal_pipe = _open_signal_pipe()
    signal_on_parent_death(signal.SIGTERM, parent)
    pid = _spawn(command)
    guard_pipe = _fork_guard(pid)
    code = _wait_for_exit(pid, signal_pipe)
    _signal_group(pid, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError):  # the guard was killed
        os.write(guard_pipe, b"done")
    if code is None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _open_signal_pipe() -> int:
    """Return a pipe that receives one byte per signal."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # set_wakeup_fd writes only for signals with a handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and lets running requests finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # like the parent: service managers signal all processes
    return read_end


def _spawn(command: list[str]) -> int:
    own = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal_on_parent_death(signal.SIGKILL, own)
    offer_to_oom_killer()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_RUN_EXIT_CODE)


def _fork_guard(pid: int) -> int:
    """Fork a process that kills the group when this one dies; return the pipe that dismisses it."""
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(read_end)
        return write_end
    os.close(write_end)
    os.setsid()
    signal.set_wakeup_fd(-1)  # the inherited pipe belongs to the parent
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not os.read(read_end, 4):
        _signal_group(pid, signal.SIGKILL)
    os._exit(0)


def _wait_for_exit(pid: int, signal_pipe: int) -> int | None:
    """Return the command's exit code, or None if standard input ended first."""
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
    # An empty group; macOS: PermissionError if only zombies are left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
