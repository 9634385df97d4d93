"""Launch configuration of the llama.cpp child, and the child's report.

The parent sends the configuration as one line of JSON on standard input, so that no secret is a command-line argument.
This module is separate from `llama_child`, since the parent must not import native code.
"""

import msgspec

ENGINE_CONFIG_LIMIT_BYTES = 4 * 1024 * 1024
"""Longest line that the child reads. Its only large part is the chat template; known templates have under 50 kB."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Model file, socket and settings of one engine. The settings have the names of llama-server's flags."""

    name: str
    file: str
    socket: str
    key: str
    parent_pid: int
    """The child exits when this process does."""
    start_timeout_s: float
    ctx_size: int
    parallel: int
    kv_unified: bool
    gpu_layers: int
    main_gpu: int
    split_mode: str
    tensor_split: tuple[float, ...]
    kv_offload: bool
    threads: int
    """0: llama.cpp chooses; the same for `threads_batch`."""
    threads_batch: int
    batch_size: int
    ubatch_size: int
    flash_attn: str
    cont_batching: bool
    swa_full: bool
    mlock: bool
    mmap: bool
    warmup: bool
    embeddings: bool
    pooling: str | None
    """None: the model's default."""
    lora: tuple[str, ...]
    mmproj: str | None
    jinja: bool
    chat_template: str | None
    reasoning_format: str
    cache_type_k: str
    cache_type_v: str
    cache_ram_mib: int
    cache_reuse: int

    def __repr__(self) -> str:
        """Omit the key: a repr may end up in a log."""
        return f"EngineConfig({self.name!r}, {self.socket!r})"


class EngineReady(msgspec.Struct, frozen=True, tag="ready", tag_field="status"):
    """Report that the model is loaded and the server listens."""

    load_s: float


NO_GPU_WARNING = (
    "this engine has no GPU: -ngl, -mg, -ts and -sm do nothing here; "
    "use a build of llama-server with CUDA as a command instead"
)
"""Log line of the child when GPU settings have no effect."""


class EngineStartFailure(msgspec.Struct, frozen=True, tag="failed", tag_field="status"):
    """Report that the child cannot start. The text contains no path and no secret."""

    error: str
