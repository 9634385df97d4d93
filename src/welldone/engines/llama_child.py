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
from pathlib import Path

import msgspec

from welldone.engines.engine_config import (
    ENGINE_CONFIG_LIMIT_BYTES,
    NO_GPU_WARNING,
    EngineConfig,
    EngineReady,
    EngineStartFailure,
)
from welldone.engines.parent_death import exit_on_stdin_eof, signal_on_parent_death

IMPORT_ERROR: ImportError | None = None
"""Why xllamacpp cannot be imported; reported to the parent as a sentence instead of a traceback."""

try:
    import xllamacpp  # type: ignore[import-untyped]
except ImportError as error:
    xllamacpp = None
    IMPORT_ERROR = error

READ_TIMEOUT_S = 60
"""Requests come complete from our own server over a local socket; llama.cpp's default is an hour."""

WRITE_TIMEOUT_S = 600
"""Our own server reads as slowly as its client, for which it has a shorter limit."""

STARTUP_ALARM_GRACE_S = 10
"""The parent ends a slow start first and reports it. The alarm is for a parent that is dead."""

OOM_SCORE_ADJ = b"500"
"""Of -1000 to 1000: when memory runs out, Linux kills the engine, which is restarted, and not the server."""

_FOLDER_PATH = re.compile(r"(?:/[^\s/:]+)*/(?=[^\s/])")

NO_CONFIG = "no configuration on standard input: welldone starts this program"

SYSTEM_PACKAGES = {
    "libgomp.so.1": "apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora) or "
    "apk add libgomp (Alpine)",
    "libstdc++.so.6": "apt-get install libstdc++6 (Debian, Ubuntu), dnf install libstdc++ (Fedora) or "
    "apk add libstdc++ (Alpine)",
}
"""System libraries that the wheel of xllamacpp needs but does not contain, and how to install them."""

FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


LOAD_MODES = {
    (True, True): "LLAMA_LOAD_MODE_MMAP_MLOCK",
    (True, False): "LLAMA_LOAD_MODE_MLOCK",
    (False, True): "LLAMA_LOAD_MODE_AUTO",
    (False, False): "LLAMA_LOAD_MODE_NONE",
}
"""Load modes of llama.cpp by `mlock` and `mmap`."""


def build_params(config: EngineConfig) -> "xllamacpp.CommonParams":
    """Return llama.cpp's parameters. Endpoints and CORS of its server are disabled as far as possible."""
    params = xllamacpp.CommonParams()
    params.model.path = config.file
    params.model_alias = {config.name}
    params.load_mode = getattr(xllamacpp.llama_load_mode, LOAD_MODES[config.mlock, config.mmap])
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in config.lora]
    if config.mmproj is not None:
        params.mmproj.path = config.mmproj
    params.offline = True  # no downloads
    params.warmup = config.warmup
    params.n_gpu_layers = config.gpu_layers
    params.main_gpu = config.main_gpu
    params.split_mode = _enum_member("llama_split_mode", "LLAMA_SPLIT_MODE", config.split_mode)
    if config.tensor_split:
        size = len(params.tensor_split)
        params.tensor_split = [*config.tensor_split, *[0.0] * size][:size]
    params.no_kv_offload = not config.kv_offload
    params.n_ctx = config.ctx_size
    params.n_predict = config.ctx_size  # an answer cannot be longer than the context
    params.n_parallel = config.parallel
    params.n_batch = config.batch_size
    params.n_ubatch = config.ubatch_size
    params.cont_batching = config.cont_batching
    params.swa_full = config.swa_full
    flash_attention = FLASH_ATTENTION[config.flash_attn]
    params.flash_attn_type = _enum_member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE", flash_attention)
    if config.threads:
        params.cpuparams.n_threads = config.threads
    if config.threads_batch:
        params.cpuparams_batch.n_threads = config.threads_batch
    params.kv_unified = config.kv_unified
    params.cache_type_k = _enum_member("ggml_type", "GGML_TYPE", config.cache_type_k)
    params.cache_type_v = _enum_member("ggml_type", "GGML_TYPE", config.cache_type_v)
    params.cache_ram_mib = config.cache_ram_mib
    params.n_cache_reuse = config.cache_reuse
    params.use_jinja = config.jinja
    if config.chat_template is not None:
        params.chat_template = config.chat_template
    reasoning = config.reasoning_format.replace("-", "_")
    params.reasoning_format = _enum_member("common_reasoning_format", "COMMON_REASONING_FORMAT", reasoning)
    params.embedding = config.embeddings
    if config.pooling is not None:
        params.pooling_type = _enum_member("llama_pooling_type", "LLAMA_POOLING_TYPE", config.pooling)
    params.hostnames = [config.socket]
    params.api_keys = [config.key]
    params.cors_origins = ""
    params.cors_credentials = False
    params.endpoint_slots = False
    params.endpoint_props = False
    params.endpoint_metrics = True
    params.ui = False
    params.media_path = ""
    params.slot_save_path = ""
    params.sse_ping_interval = -1  # the server sends its own keep-alive comments
    params.timeout_read = READ_TIMEOUT_S
    params.timeout_write = WRITE_TIMEOUT_S
    return params


def _enum_member(enum_name: str, prefix: str, member_name: str) -> "enum.IntEnum":
    member: enum.IntEnum = getattr(xllamacpp, enum_name)[f"{prefix}_{member_name.upper()}"]
    return member


def load_model(config: EngineConfig) -> "tuple[xllamacpp.Server | None, EngineReady | EngineStartFailure]":
    """Start the server and return it with the report. Blocks until the model is loaded."""
    if IMPORT_ERROR is not None:
        return None, EngineStartFailure(explain_import_error(IMPORT_ERROR))
    started = time.monotonic()
    try:
        server = xllamacpp.Server(build_params(config))
    except RuntimeError:  # without a reason: llama.cpp writes that to the log
        return None, EngineStartFailure("llama.cpp could not load it")
    return server, EngineReady(time.monotonic() - started)


def explain_import_error(error: ImportError) -> str:
    """Describe why xllamacpp cannot be imported, and what to do about it."""
    if isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp":
        return "llama.cpp is not installed: pip install xllamacpp"
    text = _FOLDER_PATH.sub("", str(error))  # clients may see the message: no paths
    for library, commands in SYSTEM_PACKAGES.items():
        if library in text:
            return f"llama.cpp cannot be loaded ({text}): the system library {library} is missing; {commands}"
    return (
        f"llama.cpp cannot be loaded ({text}): install what is missing, or the package for this system and Python: "
        "pip install --force-reinstall xllamacpp"
    )


def is_gpu_requested(config: EngineConfig) -> bool:
    """Return whether a setting is configured that only affects GPUs."""
    return bool(config.gpu_layers > 0 or config.main_gpu or config.tensor_split or config.split_mode != "layer")


def has_gpu() -> bool:
    """Return whether this build of llama.cpp detects a GPU."""
    return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())


def read_engine_config() -> EngineConfig:
    """Read the configuration: the first line of standard input, and the only one."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        line += piece
        if not piece or len(line) > ENGINE_CONFIG_LIMIT_BYTES:
            sys.exit(NO_CONFIG)
    try:
        return msgspec.json.decode(bytes(line), type=EngineConfig)
    except msgspec.MsgspecError:
        sys.exit(NO_CONFIG)


def raise_oom_score() -> None:
    """Have Linux kill this process first when memory runs out. No effect on other systems."""
    try:
        Path("/proc/self/oom_score_adj").write_bytes(OOM_SCORE_ADJ)
    except OSError:
        return


def main() -> None:
    """Run until the parent stops this process or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and lets running requests finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # like the parent: service managers signal all processes
    report_pipe = os.dup(1)
    os.dup2(2, 1)  # output of native code goes to the log
    os.set_blocking(2, False)  # if the parent does not read, log lines are lost instead of blocking the engine
    raise_oom_score()
    config = read_engine_config()
    signal_on_parent_death(signal.SIGKILL, config.parent_pid)
    exit_on_stdin_eof()
    # llama.cpp holds the GIL while it loads, so that EOF goes unnoticed. SIGALRM needs no interpreter.
    signal.alarm(int(config.start_timeout_s) + STARTUP_ALARM_GRACE_S)
    server, report = load_model(config)
    signal.alarm(0)
    os.write(report_pipe, msgspec.json.encode(report) + b"\n")
    if server is None:
        sys.exit(1)  # not `os._exit`: llama.cpp writes the rest of its log, which has the reason
    if is_gpu_requested(config) and not has_gpu():
        os.write(2, f"{NO_GPU_WARNING}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
