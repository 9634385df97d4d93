"""What the child around llama.cpp is told: one line of JSON on its standard input, so that no secret is an argument."""

import msgspec

ENGINE_CONFIG_LIMIT_BYTES = 4 * 1024 * 1024
"""Longest line that the child reads. A chat template is its only large part: those that we know have under 50 kB."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: its file, its place, and llama.cpp's settings by the names that llama-server's users know."""

    name: str
    file: str
    socket: str
    key: str
    parent_pid: int
    """The process that gives the orders. The child ends with it."""
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
    """0: llama.cpp chooses. The same of `threads_batch`."""
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
    """None: the model's own."""
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
        """Without the key: a repr may get into a log."""
        return f"Orders({self.name!r}, {self.socket!r})"


class EngineReady(msgspec.Struct, frozen=True, tag="ready", tag_field="said"):
    """The child's word that it has the model and listens."""

    load_s: float


NO_GPU_WARNING = (
    "this engine has no GPU: -ngl, -mg, -ts and -sm do nothing here; "
    "use a build of llama-server with CUDA as a command instead"
)
"""The line in the child's log where settings for a GPU were given in vain."""


class EngineStartFailure(msgspec.Struct, frozen=True, tag="failed", tag_field="said"):
    """The child's last word. The text holds no path and no secret."""

    error: str
