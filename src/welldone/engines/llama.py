"""The child program around llama.cpp: `python -m welldone.engines.llama`. The only file that knows xllamacpp.

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

from welldone.engines.orders import NO_GPU, ORDERS_LIMIT_BYTES, Failed, Orders, Ready
from welldone.engines.tether import exit_at_end_of_input, signal_at_parents_death

IMPORT_ERROR: ImportError | None = None
"""Why xllamacpp could not be imported. The parent gets a sentence about it instead of a traceback."""

try:
    import xllamacpp  # type: ignore[import-untyped]
except ImportError as error:
    xllamacpp = None
    IMPORT_ERROR = error

READ_LIMIT_S = 60
"""A request comes whole from our own server over a local socket; llama.cpp would wait an hour for it."""

WRITE_LIMIT_S = 600
"""Our own server reads as slowly as its client does, and has a shorter limit for that."""

ALARM_GRACE_S = 10
"""The parent ends a slow start first and says why. The alarm is for a parent that is gone."""

OOM_SCORE = b"500"
"""Of -1000 to 1000. Where memory runs out, Linux is to end the engine, which comes back, and not the server."""

_FOLDERS = re.compile(r"(?:/[^\s/:]+)*/(?=[^\s/])")

NO_ORDERS = "no orders on standard input: this program is started by welldone"

PACKAGES = {
    "libgomp.so.1": "apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora) or "
    "apk add libgomp (Alpine)",
    "libstdc++.so.6": "apt-get install libstdc++6 (Debian, Ubuntu), dnf install libstdc++ (Fedora) or "
    "apk add libstdc++ (Alpine)",
}
"""System libraries that the wheel of xllamacpp links to and does not contain, and how to install each."""

FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


def parameters(orders: Orders) -> "xllamacpp.CommonParams":
    """llama.cpp's parameters for these orders. What its server would offer to the world is closed."""
    params = xllamacpp.CommonParams()
    for step in (_set_model, _set_devices, _set_work, _set_cache, _set_chat, _close):
        step(params, orders)
    return params


def _set_model(params: "xllamacpp.CommonParams", orders: Orders) -> None:
    params.model.path = orders.file
    params.model_alias = {orders.name}
    params.load_mode = _load_mode(orders)
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in orders.lora]
    if orders.mmproj is not None:
        params.mmproj.path = orders.mmproj
    params.offline = True  # nothing is fetched here
    params.warmup = orders.warmup


def _load_mode(orders: Orders) -> "xllamacpp.llama_load_mode":
    modes = xllamacpp.llama_load_mode
    if orders.mlock:
        return modes.LLAMA_LOAD_MODE_MMAP_MLOCK if orders.mmap else modes.LLAMA_LOAD_MODE_MLOCK
    return modes.LLAMA_LOAD_MODE_AUTO if orders.mmap else modes.LLAMA_LOAD_MODE_NONE


def _set_devices(params: "xllamacpp.CommonParams", orders: Orders) -> None:
    params.n_gpu_layers = orders.gpu_layers
    params.main_gpu = orders.main_gpu
    params.split_mode = _named("llama_split_mode", "LLAMA_SPLIT_MODE", orders.split_mode)
    if orders.tensor_split:
        room = len(params.tensor_split)
        params.tensor_split = [*orders.tensor_split, *[0.0] * room][:room]
    params.no_kv_offload = not orders.kv_offload


def _set_work(params: "xllamacpp.CommonParams", orders: Orders) -> None:
    params.n_ctx = orders.ctx_size
    params.n_predict = orders.ctx_size  # no answer is longer than its context
    params.n_parallel = orders.parallel
    params.n_batch = orders.batch_size
    params.n_ubatch = orders.ubatch_size
    params.cont_batching = orders.cont_batching
    params.swa_full = orders.swa_full
    flash_attention = FLASH_ATTENTION[orders.flash_attn]
    params.flash_attn_type = _named("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE", flash_attention)
    if orders.threads:
        params.cpuparams.n_threads = orders.threads
    if orders.threads_batch:
        params.cpuparams_batch.n_threads = orders.threads_batch


def _set_cache(params: "xllamacpp.CommonParams", orders: Orders) -> None:
    params.kv_unified = orders.kv_unified
    params.cache_type_k = _named("ggml_type", "GGML_TYPE", orders.cache_type_k)
    params.cache_type_v = _named("ggml_type", "GGML_TYPE", orders.cache_type_v)
    params.cache_ram_mib = orders.cache_ram_mib
    params.n_cache_reuse = orders.cache_reuse


def _set_chat(params: "xllamacpp.CommonParams", orders: Orders) -> None:
    params.use_jinja = orders.jinja
    if orders.chat_template is not None:
        params.chat_template = orders.chat_template
    reasoning = orders.reasoning_format.replace("-", "_")
    params.reasoning_format = _named("common_reasoning_format", "COMMON_REASONING_FORMAT", reasoning)
    params.embedding = orders.embeddings
    if orders.pooling is not None:
        params.pooling_type = _named("llama_pooling_type", "LLAMA_POOLING_TYPE", orders.pooling)


def _close(params: "xllamacpp.CommonParams", orders: Orders) -> None:
    params.hostnames = [orders.socket]
    params.api_keys = [orders.key]
    params.cors_origins = ""
    params.cors_credentials = False
    params.endpoint_slots = False
    params.endpoint_props = False
    params.endpoint_metrics = True
    params.ui = False
    params.media_path = ""
    params.slot_save_path = ""
    params.sse_ping_interval = -1  # the server makes its own keep-alives
    params.timeout_read = READ_LIMIT_S
    params.timeout_write = WRITE_LIMIT_S


def _named(kind: str, prefix: str, word: str) -> "enum.IntEnum":
    """A member of one of llama.cpp's enums. Settings hold only words that it knows."""
    member: enum.IntEnum = getattr(xllamacpp, kind)[f"{prefix}_{word.upper()}"]
    return member


def load(orders: Orders) -> "tuple[xllamacpp.Server | None, Ready | Failed]":
    """The running server and what to report. Blocks until the model is loaded."""
    if IMPORT_ERROR is not None:
        return None, Failed(explain(IMPORT_ERROR))
    began = time.monotonic()
    try:
        server = xllamacpp.Server(parameters(orders))
    except RuntimeError:  # the reason is in the log: this exception never has it
        return None, Failed("llama.cpp could not load it")
    return server, Ready(time.monotonic() - began)


def explain(error: ImportError) -> str:
    """Why xllamacpp cannot be imported, and what to do about it."""
    if isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp":
        return "llama.cpp is not installed: pip install xllamacpp"
    text = _FOLDERS.sub("", str(error))  # clients may see the message, and paths are none of their business
    for library, commands in PACKAGES.items():
        if library in text:
            return f"llama.cpp cannot be loaded ({text}): the system library {library} is missing; {commands}"
    return (
        f"llama.cpp cannot be loaded ({text}): install what is missing, or the package for this system and Python: "
        "pip install --force-reinstall xllamacpp"
    )


def wants_gpu(orders: Orders) -> bool:
    """Whether somebody has set what only a GPU can do."""
    return bool(orders.gpu_layers > 0 or orders.main_gpu or orders.tensor_split or orders.split_mode != "layer")


def has_gpu() -> bool:
    """Whether this build of llama.cpp sees one."""
    return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())


def read_orders() -> Orders:
    """The first line of standard input. Nothing follows it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        line += piece
        if not piece or len(line) > ORDERS_LIMIT_BYTES:
            sys.exit(NO_ORDERS)
    try:
        return msgspec.json.decode(bytes(line), type=Orders)
    except msgspec.MsgspecError:
        sys.exit(NO_ORDERS)


def offer_to_go_first() -> None:
    """Says to Linux whom to end where memory runs out. Elsewhere there is nobody to say it to."""
    try:
        Path("/proc/self/oom_score_adj").write_bytes(OOM_SCORE)
    except OSError:
        return


def main() -> None:
    """Runs until the parent is gone or ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which lets running requests finish
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as the parent does: service managers signal all processes
    reports = os.dup(1)
    os.dup2(2, 1)  # whatever native code prints is log
    os.set_blocking(2, False)  # a parent that does not read costs log lines, never time
    offer_to_go_first()
    orders = read_orders()
    signal_at_parents_death(signal.SIGKILL, orders.parent)
    exit_at_end_of_input()
    # llama.cpp holds the interpreter while it loads, and nobody sees the input's end. An alarm needs no interpreter.
    signal.alarm(int(orders.start_limit_s) + ALARM_GRACE_S)
    server, report = load(orders)
    signal.alarm(0)
    os.write(reports, msgspec.json.encode(report) + b"\n")
    if server is None:
        os._exit(1)
    if wants_gpu(orders) and not has_gpu():
        os.write(2, f"{NO_GPU}\n".encode())
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
