"""Child program that runs llama.cpp: `python -m welldone.engines.llama_child`. The only module that imports xllamacpp.

A native crash ends this process only. It reads its configuration from the first line of standard input and reports once
on standard output that it is ready, or why it cannot start. The log goes to standard error.
"""

import enum
import os
import re
import signal
import sys
import time

import msgspec

from welldone.config.model import ModelSettings
from welldone.config.settings import install_advice
from welldone.engines.engine_config import (
    ENGINE_CONFIG_LIMIT_BYTES,
    LOAD_MODES,
    NO_DEVICES,
    NO_GPU_WARNING,
    READ_TIMEOUT_S,
    WRITE_TIMEOUT_S,
    EngineConfig,
    EngineReady,
    EngineStartFailure,
    WheelInfo,
    unknown_device,
)
from welldone.engines.parent_death import exit_on_stdin_eof, offer_to_oom_killer, signal_on_parent_death

IMPORT_ERROR: ImportError | None = None
"""Why xllamacpp cannot be imported; reported to the parent as a sentence instead of a traceback."""

try:
    import xllamacpp  # type: ignore[import-untyped]
except ImportError as _error:
    xllamacpp = None
    IMPORT_ERROR = _error

STARTUP_ALARM_GRACE_S = 10
"""The parent ends a slow start first and reports it. The alarm is for a parent that is dead."""

_FOLDER_PATH = re.compile(r"(?:/[^\s/:]+)*/(?=[^\s/])")

INFO_OPTION = "--info"

NO_CONFIG = "no configuration on standard input: welldone starts this program"

SYSTEM_PACKAGES = {
    "libgomp.so.1": "apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora) or "
    "apk add libgomp (Alpine)",
    "libstdc++.so.6": "apt-get install libstdc++6 (Debian, Ubuntu), dnf install libstdc++ (Fedora) or "
    "apk add libstdc++ (Alpine)",
}
"""System libraries that the wheel of xllamacpp needs but does not contain, and how to install them."""

FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


SAME_NAME = ("warmup", "main_gpu", "cont_batching", "swa_full", "kv_unified", "cache_ram_mib")
"""Settings that are parameters of llama.cpp under the same name."""


def build_params(config: EngineConfig) -> "xllamacpp.CommonParams":
    """Return llama.cpp's parameters. Endpoints and CORS of its server are disabled as far as possible."""
    settings, params = config.settings, xllamacpp.CommonParams()
    for name in SAME_NAME:
        setattr(params, name, getattr(settings, name))
    params.model.path = str(settings.file)
    params.model_alias = {settings.name}
    load_mode = LOAD_MODES[settings.mlock, settings.mmap].replace("+", "_")
    params.load_mode = _enum_member("llama_load_mode", "LLAMA_LOAD_MODE", load_mode)
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in settings.lora]
    if settings.mmproj is not None:
        params.mmproj.path = str(settings.mmproj)
    params.offline = True  # no downloads
    layers = 0 if settings.device == (NO_DEVICES,) else settings.gpu_layers
    params.n_gpu_layers = -1 if layers is None else layers
    params.fit_params = _has_gpu()  # reads the model twice, to see how much of it fits into the memory of a GPU
    params.split_mode = _enum_member("llama_split_mode", "LLAMA_SPLIT_MODE", settings.split_mode)
    if settings.tensor_split:
        size = len(params.tensor_split)
        params.tensor_split = [*map(float, settings.tensor_split), *[0.0] * size][:size]
    params.no_kv_offload = not settings.kv_offload
    params.n_ctx = settings.ctx_size
    params.n_predict = settings.ctx_size  # an answer cannot be longer than the context
    params.n_parallel = settings.parallel
    params.n_batch = settings.batch_size
    params.n_ubatch = settings.ubatch_size
    flash_attention = FLASH_ATTENTION[settings.flash_attn]
    params.flash_attn_type = _enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE", flash_attention)
    if settings.threads:
        params.cpuparams.n_threads = settings.threads
    if settings.threads_batch:
        params.cpuparams_batch.n_threads = settings.threads_batch
    params.cache_type_k = _enum_member("ggml_type", "GGML_TYPE", settings.cache_type_k)
    params.cache_type_v = _enum_member("ggml_type", "GGML_TYPE", settings.cache_type_v)
    params.n_cache_reuse = settings.cache_reuse
    params.use_jinja = settings.jinja
    if settings.chat_template is not None:
        params.chat_template = settings.chat_template
    reasoning = settings.reasoning_format.replace("-", "_")
    params.reasoning_format = _enum_member("common_reasoning_format", "COMMON_REASONING_FORMAT", reasoning)
    params.embedding = settings.embeddings
    if settings.pooling is not None:
        params.pooling_type = _enum_member("llama_pooling_type", "LLAMA_POOLING_TYPE", settings.pooling)
    _set_speculation(params.speculative, settings)
    params.hostnames = [config.socket]
    params.api_keys = [config.key]
    params.endpoint_metrics = True
    params.endpoint_slots = params.endpoint_props = params.ui = params.cors_credentials = False
    params.cors_origins = params.media_path = params.slot_save_path = ""
    params.sse_ping_interval = -1  # the server sends its own keep-alive comments
    params.timeout_read = READ_TIMEOUT_S
    params.timeout_write = WRITE_TIMEOUT_S
    return params


def _set_speculation(params: "xllamacpp.CommonParamsSpeculative", settings: ModelSettings) -> None:
    prefix, names = "COMMON_SPECULATIVE_TYPE", [name.replace("-", "_") for name in settings.spec_type or ("none",)]
    params.types = [_enum_member("common_speculative_type", prefix, name) for name in names]
    if settings.draft_model is not None:
        params.draft.mparams.path = str(settings.draft_model)
    for name, value in (
        ("n_max", settings.draft_max),
        ("n_min", settings.draft_min),
        ("p_min", settings.draft_p_min),
        ("n_gpu_layers", 0 if settings.device == (NO_DEVICES,) else settings.draft_gpu_layers),
        ("devices", ",".join(settings.draft_device) or None),
    ):
        if value is not None:
            setattr(params.draft, name, value)


def _has_gpu() -> bool:
    return bool(_gpus())


def _gpus() -> list[str]:
    return [device["name"] for device in xllamacpp.get_device_info() if "GPU" in device["type"].name]


def _device_problem(settings: ModelSettings) -> str | None:
    """Return why the devices of the settings cannot be used. xllamacpp has no parameter for those of the model."""
    known = _gpus()
    for name in (*settings.device, *settings.draft_device):
        if name not in (*known, NO_DEVICES):
            return unknown_device(name, known)
    if settings.device not in ((), (NO_DEVICES,), tuple(known)):
        return "the wheel uses all GPUs, or one with -sm none -mg N: for --device, use a llama-server (--engine)"
    return None


def _enum_member(enum_name: str, prefix: str, member_name: str) -> "enum.IntEnum":
    member: enum.IntEnum = getattr(xllamacpp, enum_name)[f"{prefix}_{member_name.upper()}"]
    return member


def load_model(config: EngineConfig) -> "tuple[xllamacpp.Server | None, EngineReady | EngineStartFailure]":
    """Start the server and return it with the report. Blocks until the model is loaded."""
    if IMPORT_ERROR is not None:
        return None, EngineStartFailure(explain_import_error(IMPORT_ERROR))
    started = time.monotonic()
    if problem := _device_problem(config.settings):
        return None, EngineStartFailure(problem)
    try:
        server = xllamacpp.Server(build_params(config))
    except RuntimeError:  # without a reason: llama.cpp writes that to the log
        return None, EngineStartFailure("llama.cpp could not load it")
    warnings = (NO_GPU_WARNING,) if config.settings.needs_gpu and not _has_gpu() else ()
    return server, EngineReady(time.monotonic() - started, warnings)


def explain_import_error(error: ImportError) -> str:
    """Describe why xllamacpp cannot be imported, and what to do about it."""
    if isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp":
        return f"llama.cpp is not installed: {install_advice('serve')}"
    text = _FOLDER_PATH.sub("", str(error))  # clients may see the message: no paths
    for library, commands in SYSTEM_PACKAGES.items():
        if library in text:
            return f"llama.cpp cannot be loaded ({text}): the system library {library} is missing; {commands}"
    return (
        f"llama.cpp cannot be loaded ({text}): install what is missing, or the package for this system and Python: "
        "pip install --force-reinstall xllamacpp"
    )


def read_engine_config() -> EngineConfig:
    """Read the configuration: the first line of standard input, and the only one."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        line += piece
        if not piece or len(line) > ENGINE_CONFIG_LIMIT_BYTES:
            sys.exit(NO_CONFIG)
    try:
        return EngineConfig.decode(bytes(line))
    except msgspec.MsgspecError:
        sys.exit(NO_CONFIG)


def print_info() -> None:
    """Print the version of xllamacpp and its system info."""
    if IMPORT_ERROR is not None:
        sys.exit(explain_import_error(IMPORT_ERROR))
    info = WheelInfo(version=xllamacpp.__version__, system_info=xllamacpp.get_system_info())
    sys.stdout.buffer.write(msgspec.json.encode(info) + b"\n")


def main() -> None:
    """Run until the parent stops this process or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and lets running requests finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # like the parent: service managers signal all processes
    report_pipe = os.dup(1)
    os.dup2(2, 1)  # output of native code goes to the log
    os.set_blocking(2, False)  # if the parent does not read, log lines are lost instead of blocking the engine
    offer_to_oom_killer()
    config = read_engine_config()
    signal_on_parent_death(signal.SIGKILL, config.parent_pid)
    exit_on_stdin_eof()
    # llama.cpp holds the GIL while it loads, so that EOF goes unnoticed. SIGALRM needs no interpreter.
    signal.alarm(int(config.settings.load_timeout_s) + STARTUP_ALARM_GRACE_S)
    server, report = load_model(config)
    signal.alarm(0)
    os.write(report_pipe, msgspec.json.encode(report) + b"\n")
    if server is None:
        sys.exit(1)  # not `os._exit`: llama.cpp writes the rest of its log, which has the reason
    while True:
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1:] == [INFO_OPTION]:
        print_info()
    else:
        main()
