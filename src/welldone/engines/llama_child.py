"""The child program around llama.cpp: `python -m welldone.engines.llama_child`. The only file that knows xllamacpp.

A native crash ends this process and nothing else. It reads its orders from the first line of standard input and says on
standard output, once, that it is ready or why it cannot be. Its log goes to standard error.
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
"""Why xllamacpp could not be imported. The parent gets a sentence about it instead of a traceback."""

try:
    import xllamacpp  # type: ignore[import-untyped]
except ImportError as error:
    xllamacpp = None
    IMPORT_ERROR = error

READ_TIMEOUT_S = 60
"""A request comes whole from our own server over a local socket; llama.cpp would wait an hour for it."""

WRITE_TIMEOUT_S = 600
"""Our own server reads as slowly as its client does, and has a shorter limit for that."""

STARTUP_ALARM_GRACE_S = 10
"""The parent ends a slow start first and says why. The alarm is for a parent that is gone."""

OOM_SCORE_ADJ = b"500"
"""Of -1000 to 1000. Where memory runs out, Linux is to end the engine, which comes back, and not the server."""

_FOLDER_PATH = re.compile(r"(?:/[^\s/:]+)*/(?=[^\s/])")

NO_CONFIG = "no orders on standard input: this program is started by welldone"

SYSTEM_PACKAGES = {
    "libgomp.so.1": "apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora) or "
    "apk add libgomp (Alpine)",
    "libstdc++.so.6": "apt-get install libstdc++6 (Debian, Ubuntu), dnf install libstdc++ (Fedora) or "
    "apk add libstdc++ (Alpine)",
}
"""System libraries that the wheel of xllamacpp links to and does not contain, and how to install each."""

FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


def build_params(config: EngineConfig) -> "xllamacpp.CommonParams":
    """llama.cpp's parameters for these orders. What its server would offer to the world is closed."""
    params = xllamacpp.CommonParams()
    for step in (_set_model, _set_devices, _set_batching, _set_cache, _set_chat, _restrict_server):
        step(params, config)
    return params


def _set_model(params: "xllamacpp.CommonParams", config: EngineConfig) -> None:
    params.model.path = config.file
    params.model_alias = {config.name}
    params.load_mode = _load_mode(config)
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in config.lora]
    if config.mmproj is not None:
        params.mmproj.path = config.mmproj
    params.offline = True  # nothing is fetched here
    params.warmup = config.warmup


def _load_mode(config: EngineConfig) -> "xllamacpp.llama_load_mode":
    modes = xllamacpp.llama_load_mode
    if config.mlock:
        return modes.LLAMA_LOAD_MODE_MMAP_MLOCK if config.mmap else modes.LLAMA_LOAD_MODE_MLOCK
    return modes.LLAMA_LOAD_MODE_AUTO if config.mmap else modes.LLAMA_LOAD_MODE_NONE


def _set_devices(params: "xllamacpp.CommonParams", config: EngineConfig) -> None:
    params.n_gpu_layers = config.gpu_layers
    params.main_gpu = config.main_gpu
    params.split_mode = _enum_member("llama_split_mode", "LLAMA_SPLIT_MODE", config.split_mode)
    if config.tensor_split:
        room = len(params.tensor_split)
        params.tensor_split = [*config.tensor_split, *[0.0] * room][:room]
    params.no_kv_offload = not config.kv_offload


def _set_batching(params: "xllamacpp.CommonParams", config: EngineConfig) -> None:
    params.n_ctx = config.ctx_size
    params.n_predict = config.ctx_size  # no answer is longer than its context
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


def _set_cache(params: "xllamacpp.CommonParams", config: EngineConfig) -> None:
    params.kv_unified = config.kv_unified
    params.cache_type_k = _enum_member("ggml_type", "GGML_TYPE", config.cache_type_k)
    params.cache_type_v = _enum_member("ggml_type", "GGML_TYPE", config.cache_type_v)
    params.cache_ram_mib = config.cache_ram_mib
    params.n_cache_reuse = config.cache_reuse


def _set_chat(params: "xllamacpp.CommonParams", config: EngineConfig) -> None:
    params.use_jinja = config.jinja
    if config.chat_template is not None:
        params.chat_template = config.chat_template
    reasoning = config.reasoning_format.replace("-", "_")
    params.reasoning_format = _enum_member("common_reasoning_format", "COMMON_REASONING_FORMAT", reasoning)
    params.embedding = config.embeddings
    if config.pooling is not None:
        params.pooling_type = _enum_member("llama_pooling_type", "LLAMA_POOLING_TYPE", config.pooling)


def _restrict_server(params: "xllamacpp.CommonParams", config: EngineConfig) -> None:
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
    params.sse_ping_interval = -1  # the server makes its own keep-alives
    params.timeout_read = READ_TIMEOUT_S
    params.timeout_write = WRITE_TIMEOUT_S


def _enum_member(enum_name: str, prefix: str, member_name: str) -> "enum.IntEnum":
    """A member of one of llama.cpp's enums. Settings hold only words that it knows."""
    member: enum.IntEnum = getattr(xllamacpp, enum_name)[f"{prefix}_{member_name.upper()}"]
    return member


def load_model(config: EngineConfig) -> "tuple[xllamacpp.Server | None, EngineReady | EngineStartFailure]":
    """The running server and what to report. Blocks until the model is loaded."""
    if IMPORT_ERROR is not None:
        return None, EngineStartFailure(explain_import_error(IMPORT_ERROR))
    began = time.monotonic()
    try:
        server = xllamacpp.Server(build_params(config))
    except RuntimeError:  # the reason is in the log: this exception never has it
        return None, EngineStartFailure("llama.cpp could not load it")
    return server, EngineReady(time.monotonic() - began)


def explain_import_error(error: ImportError) -> str:
    """Why xllamacpp cannot be imported, and what to do about it."""
    if isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp":
        return "llama.cpp is not installed: pip install xllamacpp"
    text = _FOLDER_PATH.sub("", str(error))  # clients may see the message, and paths are none of their business
    for library, commands in SYSTEM_PACKAGES.items():
        if library in text:
            return f"llama.cpp cannot be loaded ({text}): the system library {library} is missing; {commands}"
    return (
        f"llama.cpp cannot be loaded ({text}): install what is missing, or the package for this system and Python: "
        "pip install --force-reinstall xllamacpp"
    )


def is_gpu_requested(config: EngineConfig) -> bool:
    """Whether somebody has set what only a GPU can do."""
    return bool(config.gpu_layers > 0 or config.main_gpu or config.tensor_split or config.split_mode != "layer")


def has_gpu() -> bool:
    """Whether this build of llama.cpp sees one."""
    return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())


def read_engine_config() -> EngineConfig:
    """The first line of standard input. Nothing follows it."""
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
    """Says to Linux whom to end where memory runs out. Elsewhere there is nobody to say it to."""
    try:
        Path("/proc/self/oom_score_adj").write_bytes(OOM_SCORE_ADJ)
    except OSError:
        return


def main() -> None:
    """Runs until the parent is gone or ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which lets running requests finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as the parent does: service managers signal all processes
    reports = os.dup(1)
    os.dup2(2, 1)  # whatever native code prints is log
    os.set_blocking(2, False)  # a parent that does not read costs log lines, never time
    raise_oom_score()
    orders = read_engine_config()
    signal_on_parent_death(signal.SIGKILL, orders.parent_pid)
    exit_on_stdin_eof()
    # llama.cpp holds the interpreter while it loads, and nobody sees the input's end. An alarm needs no interpreter.
    signal.alarm(int(orders.start_timeout_s) + STARTUP_ALARM_GRACE_S)
    server, report = load_model(orders)
    signal.alarm(0)
    os.write(reports, msgspec.json.encode(report) + b"\n")
    if server is None:
        os._exit(1)
    if is_gpu_requested(orders) and not has_gpu():
        os.write(2, f"{NO_GPU_WARNING}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
