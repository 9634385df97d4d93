"""Launch configuration of the llama.cpp child, and the child's report.

The parent sends the configuration as one line of JSON on standard input, so that no secret is a command-line argument.
This module is separate from `llama_child`, since the parent must not import native code.
"""

import sys
from collections.abc import Sequence

import msgspec

from welldone.config.model import ModelSettings

PYTHON_MODULE = (sys.executable, "-P", "-m")
"""The command that runs a module as a child. -P: do not import modules from the current directory."""

ENGINE_CONFIG_LIMIT_BYTES = 4 * 1024 * 1024
"""Longest line that the child reads. Its only large part is the chat template; known templates have under 50 kB."""

READ_TIMEOUT_S = 60
"""Requests come complete from our own server over a local socket; llama.cpp's default is an hour."""

WRITE_TIMEOUT_S = 600
"""Our own server reads as slowly as its client, for which it has a shorter limit."""

LOAD_MODES = {(True, True): "mmap+mlock", (True, False): "mlock", (False, True): "auto", (False, False): "none"}
"""Load modes of llama.cpp by `mlock` and `mmap`."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, socket and key of one engine."""

    settings: ModelSettings
    """Those of the model, with the values that depend on its file."""
    socket: str
    key: str
    parent_pid: int
    """The child exits when this process does."""

    def __repr__(self) -> str:
        """Omit the key: a repr may end up in a log."""
        return f"EngineConfig({self.settings.name!r}, {self.socket!r})"

    def encode(self) -> bytes:
        """Return the line for the child."""
        return msgspec.json.encode(self, enc_hook=str) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "EngineConfig":
        """Read the line. Raises `msgspec.MsgspecError`."""
        return msgspec.json.decode(line, type=cls, dec_hook=_read_path)


def _read_path(expected: type, value: object) -> object:
    """Return a path for a string; `object`, the type of request defaults, takes any value."""
    return value if expected is object else expected(value)


class EngineReady(msgspec.Struct, frozen=True, tag="ready", tag_field="status"):
    """Report that the model is loaded and the server listens."""

    load_s: float
    warnings: tuple[str, ...] = ()
    """For the server's log."""


NO_GPU_WARNING = (
    "this engine has no GPU: -ngl, -mg, -ts and -sm do nothing here; "
    "`welldone engine build --cuda` or `--vulkan` makes one that uses it"
)
"""Log line when GPU settings have no effect."""


NO_DEVICES = "none"
"""The value of `device` for the CPU alone."""


def unknown_device(name: str, known: Sequence[str]) -> str:
    """Return the error for a device that the engine does not have."""
    explanation = (
        f"it has {', '.join(known)}"
        if known
        else "it has no GPU; `welldone engine build --cuda` or `--vulkan` makes one"
    )
    return f"this engine has no device {name} (--device): {explanation}"


class WheelInfo(msgspec.Struct, frozen=True):
    """What `llama_child --info` prints: the version of xllamacpp, and the system info of its llama.cpp."""

    version: str
    system_info: str


class EngineStartFailure(msgspec.Struct, frozen=True, tag="failed", tag_field="status"):
    """Report that the child cannot start. The text contains no path and no secret."""

    error: str
