"""The program llama-server as an engine: its abilities, probed with `--help`, and its command line.

The settings are those of `llama_child`, which runs the same code in the wheel. Versions of llama.cpp differ in their
flags: one that a program does not know is left out if the setting has its default, and is an error otherwise.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from welldone.config.model import ModelSettings
from welldone.engines import cpu_features
from welldone.engines.engine_config import LOAD_MODES, NO_DEVICES, WRITE_TIMEOUT_S, unknown_device
from welldone.engines.errors import EngineError
from welldone.engines.memory import Device

PROBE_TIMEOUT_S = 60.0
"""A build with CUDA looks for devices first, which takes seconds; on a busy machine longer."""

_OWN_VARIABLES = re.compile("LLAMA_|AIP_|HF_")
"""Variables that llama-server reads as settings (AIP_: its mode for Google's platform). welldone has read those that
apply and passes them as flags."""

_REQUIRED_FLAGS = {"--model", "--host", "--metrics", "--api-key-file"}
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_VERSION = re.compile(r"(?m)^version: (?:\S+ \(build )?(\d+)[, ]")
"""`version: 6000 (abcdef)`, or since b11500 or so `version: 0.7.0 (build 11669, commit abcdef)`."""
_DEVICE = re.compile(r"(?m)^ +(\S+): .*\(\d+ MiB, (\d+) MiB free\)$")
"""A line of `--list-devices`: `  CUDA0: NVIDIA H200 (143771 MiB, 143156 MiB free)`."""
_TRACE = "4"
"""Verbosity at which llama-server logs its system info (LOG_LEVEL_TRACE in common/log.h)."""


class ServerProgram(msgspec.Struct, frozen=True):
    """What a llama-server supports."""

    path: str
    version: int | None
    """llama.cpp's build number."""
    flags: frozenset[str]
    has_socket: bool
    """Whether it can listen on a Unix socket."""


def probe_server(path: Path) -> ServerProgram:
    """Ask the program for its flags and its version; the answer is remembered until the file changes.

    Raises `EngineError` if it does not answer as llama-server does.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise EngineError(f"{path.name} cannot be read: {error.strerror}", is_permanent=True) from error
    return _probe_file(str(path), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _probe_file(path: str, _changed_ns: int, _size_bytes: int) -> ServerProgram:
    name = Path(path).name
    help_text = run_program(path, "--help")
    lines = [line for line in help_text.splitlines() if line.startswith("-")]
    flags = frozenset(_FLAG.findall("\n".join(lines)))
    if not flags >= _REQUIRED_FLAGS:
        raise EngineError(
            f"{name} is not a llama-server, or too old: it lacks --metrics or API keys", is_permanent=True
        )
    match = _VERSION.search(run_program(path, "--version"))
    return ServerProgram(path, int(match[1]) if match else None, flags, ".sock" in help_text)


def list_devices(program: ServerProgram) -> list[Device] | None:
    """Return the GPUs of the program with their free memory; None if it cannot list them."""
    if "--list-devices" not in program.flags:
        return None
    matches = _DEVICE.findall(run_program(program.path, "--list-devices"))
    return [Device(name=name, free=int(free) * 2**20) for name, free in matches]


def selected_devices(settings: ModelSettings, devices: list[Device]) -> list[Device]:
    """Return the devices that the settings name, or all. Raises `EngineError` if one is not there."""
    by_name = {device.name: device for device in devices}
    for name in (*settings.device, *settings.draft_device):
        if name not in by_name and name != NO_DEVICES:
            raise EngineError(unknown_device(name, list(by_name)), is_permanent=True)
    selected = [by_name[name] for name in settings.device if name in by_name] if settings.device else devices
    if settings.split_mode != "none" or not selected:
        return selected
    if settings.main_gpu >= len(selected):
        text = (
            f"there is no GPU {settings.main_gpu} (--main-gpu): this engine uses {', '.join(by_name)}, counted from 0"
        )
        raise EngineError(text, is_permanent=True)
    return [selected[settings.main_gpu]]


def read_features(path: Path) -> tuple[str, ...]:
    """Return the instruction sets that the program reports to use; it logs them before it fails to load a model."""
    text = run_program(str(path), "--model", os.devnull, "--offline", "--log-verbosity", _TRACE, may_fail=True)
    return cpu_features.parse_system_info(text)


def run_program(path: str, *arguments: str, may_fail: bool = False) -> str:
    """Run the program and return its output. Raises `EngineError`."""
    name = Path(path).name
    try:
        ended = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            env=clean_environment(os.environ),
        )
    except OSError as error:
        raise EngineError(f"{name} cannot be executed: {error.strerror}", is_permanent=True) from error
    except subprocess.TimeoutExpired:
        text = f"{name} {arguments[0]} has not ended within {PROBE_TIMEOUT_S:g} s"
        raise EngineError(text, is_permanent=True) from None
    output = ended.stdout.decode("utf-8", "replace")
    if ended.returncode and not may_fail:
        last = (output.strip().splitlines() or ["it printed nothing"])[-1]
        text = f"{name} {arguments[0]} failed with code {ended.returncode}"
        raise EngineError(text, is_permanent=True, details=(last,))
    return output


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove what llama-server would read as a setting."""
    return {name: value for name, value in environment.items() if not _OWN_VARIABLES.match(name)}


def server_arguments(
    settings: ModelSettings,
    program: ServerProgram,
    host: tuple[str, ...],
    key_file: Path,
    template_file: Path | None,
    *,
    is_cpu_only: bool = False,
) -> list[str]:
    """Return the command line for the settings of `plan`, which depend on the model's file.

    Endpoints and CORS of the server are disabled as far as possible, as in `llama_child`.
    """
    line = _CommandLine(program)
    line.add("--model", str(settings.file))
    line.add("--alias", settings.name)
    line.words += host
    line.add("--api-key-file", str(key_file))
    if settings.mmproj is not None:
        line.add("--mmproj", str(settings.mmproj))
    for path in settings.lora:
        line.add("--lora", path)
    line.add("--ctx-size", settings.ctx_size)
    line.add("--predict --n-predict", settings.ctx_size)  # an answer cannot be longer than the context
    line.add("--parallel", settings.parallel)
    line.add("--batch-size", settings.batch_size)
    line.add("--ubatch-size", settings.ubatch_size)
    line.add("--flash-attn", settings.flash_attn, default="auto")
    line.add("--threads", settings.threads)
    line.add("--threads-batch", settings.threads_batch)
    line.add("--cache-type-k", settings.cache_type_k, default="f16")
    line.add("--cache-type-v", settings.cache_type_v, default="f16")
    line.add("--cache-reuse", settings.cache_reuse, default=0)
    line.optional("--cache-ram", settings.cache_ram_mib)
    line.add("--gpu-layers --n-gpu-layers", settings.gpu_layers)
    if is_cpu_only:
        line.optional("--fit", "off")  # reads the model twice, to see how much of it fits into the memory of a GPU
    line.add("--device", ",".join(settings.device) or None)
    line.add("--main-gpu", settings.main_gpu, default=0)
    line.add("--split-mode", settings.split_mode, default="layer")
    line.add("--tensor-split", ",".join(settings.tensor_split) or None)
    _add_speculation(line, settings)
    if "--load-mode" in program.flags:
        line.add("--load-mode", LOAD_MODES[settings.mlock, settings.mmap], default="auto")
    else:
        line.switch(settings.mlock, "--mlock", "")
        line.switch(settings.mmap, "", "--no-mmap")
    line.switch(settings.warmup, "", "--no-warmup")
    line.switch(settings.cont_batching, "", "--no-cont-batching")
    line.switch(settings.kv_offload, "", "--no-kv-offload")
    line.switch(settings.swa_full, "--swa-full", "")
    line.switch(settings.kv_unified, "--kv-unified", "")
    if not settings.kv_unified:
        line.optional("--no-kv-unified")
    line.add("--reasoning-format", settings.reasoning_format, default="auto")
    line.add("--jinja" if settings.jinja else "--no-jinja")
    if template_file is not None:
        line.add("--chat-template-file", str(template_file))
    line.switch(settings.embeddings, "--embeddings --embedding", "")
    line.add("--pooling", settings.pooling)
    line.add("--metrics")
    line.optional("--no-slots")
    line.optional("--no-ui --no-webui")
    line.optional("--offline")  # no downloads
    line.optional("--cors-origins", "")
    line.optional("--no-cors-credentials")
    line.optional("--sse-ping-interval", -1)  # the server sends its own keep-alive comments
    line.optional("--timeout", WRITE_TIMEOUT_S)  # for reading too
    return line.words


def _add_speculation(line: "_CommandLine", settings: ModelSettings) -> None:
    line.add("--spec-draft-model --model-draft", None if settings.draft_model is None else str(settings.draft_model))
    # Versions without --spec-type use any draft model.
    line.add("--spec-type", ",".join(settings.spec_type) or None, default="draft-simple")
    line.add("--spec-draft-n-max --draft-max", settings.draft_max)
    line.add("--spec-draft-n-min --draft-min", settings.draft_min)
    line.add("--spec-draft-p-min --draft-p-min", settings.draft_p_min)
    line.add("--spec-draft-device --device-draft", ",".join(settings.draft_device) or None)
    line.add("--spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft", settings.draft_gpu_layers)


class _CommandLine:
    """Collects flags that the program knows. Flags are given with their names in other versions."""

    def __init__(self, program: ServerProgram) -> None:
        self.words: list[str] = []
        self._program = program

    def add(self, names: str, *values: str | float | None, default: str | int | None = None) -> None:
        """Add a flag unless its value is None. Raises `EngineError` if it is unknown and has not its default."""
        if values == (None,):
            return
        flag = self._known(names.split())
        if flag is not None:
            self.words += [flag, *map(str, values)]
        elif values != (default,) or default is None:
            text = f"this llama-server does not know {names.split()[0]}; use another engine (--engine)"
            raise EngineError(text, is_permanent=True)

    def optional(self, names: str, *values: str | int) -> None:
        """Add a flag if the program knows it."""
        if (flag := self._known(names.split())) is not None:
            self.words += [flag, *map(str, values)]

    def switch(self, is_on: bool, on_names: str, off_names: str) -> None:
        """Add the flag of a setting that differs from llama-server's default; an empty name is the default."""
        if names := on_names if is_on else off_names:
            self.add(names)

    def _known(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self._program.flags), None)
