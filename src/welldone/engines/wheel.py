"""The wheel of xllamacpp: its version, and the instruction sets that its llama.cpp uses.

Only a child process imports native code; its answer is stored, since the import takes half a second.
"""

import contextlib
import importlib.metadata
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache

import msgspec

from welldone.engines import cpu_features
from welldone.engines.builds import engines_folder
from welldone.engines.engine_config import WheelInfo
from welldone.engines.plan import PYTHON_MODULE

PACKAGE = "xllamacpp"
_CACHE_FILE = "wheel.json"
_TIMEOUT_S = 30.0  # half a second on an idle machine


def wheel_version() -> str | None:
    """Return the version of the installed wheel; None if there is none."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def llama_version_of(version: str) -> int | None:
    """Return llama.cpp's build number in a version of the wheel: its third part, such as 11549."""
    found = re.fullmatch(r"\d+\.\d+\.(\d+)(\..*)?", version)
    return int(found[1]) if found else None


@cache
def wheel_fingerprint() -> str | None:
    """Return the build of llama.cpp in the wheel, such as `b11549`: the wheel does not know it."""
    number = llama_version_of(wheel_version() or "")
    return None if number is None else f"b{number}"


def wheel_features(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the instruction sets that the wheel uses; None if it cannot be imported."""
    version = wheel_version()
    if version is None:
        return None
    path = engines_folder(environment) / f"{platform.machine()}-{_CACHE_FILE}"
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        info = msgspec.json.decode(path.read_bytes(), type=WheelInfo)
        if info.version == version:
            return cpu_features.parse_system_info(info.system_info)
    try:
        ended = subprocess.run(
            [*PYTHON_MODULE, "welldone.engines.llama_child", "--info"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
            env=dict(environment),
        )
        info = msgspec.json.decode(ended.stdout, type=WheelInfo)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return None
    with contextlib.suppress(OSError):  # a folder that cannot be written costs half a second per start
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, version=version)))
    return cpu_features.parse_system_info(info.system_info)


def unused_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Return what this CPU supports and an engine with these features does not use."""
    return tuple(name for name in cpu_features.usable_features(cpu_features.cpu_flags()) if name not in features)
