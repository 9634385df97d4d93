"""Estimate of the memory that a model needs, compared with what is free before it is loaded.

Estimates are rough, and llama.cpp maps the weights from their file, so that a model larger than the memory may still
load, slowly. So an estimate is a warning. Only a model that must be read into memory, and whose weights alone exceed
all that this process may ever get, is refused.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from welldone.config.model import ALL_LAYERS, ModelSettings
from welldone.engines.cores import control_groups
from welldone.engines.cpu_features import read_system_file
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufMetadata, ModelShape
from welldone.engines.models.store import split_file_names

BITS_PER_CACHE_VALUE = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "q8_0": 8.5,
    "q5_1": 6.0,
    "q5_0": 5.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
    "iq4_nl": 4.5,
}
"""Types of the KV cache: blocks of 32 values with a scale."""

BUFFER_WIDTHS = 8
"""Vectors of the model's width per token of a batch in llama.cpp's compute buffer, measured: 18.6 MiB with a width of
576, hidden layers of 1536, 512 tokens and a context of 4,096 (b11549)."""

_SYSTEM = Path("/")
_NO_LIMIT = 2**60  # version 1 of control groups has a large number instead of `max`


class MemoryEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a loaded model, in bytes."""

    weights: int
    context: int
    buffers: int


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the machine or of the container, in bytes."""

    free: int
    """What can be used without swapping."""
    most: int
    """What this process can get at all, with swap."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of an engine."""

    name: str
    free: int
    """Free memory, in bytes."""


def weights_of(file: Path, metadata: GgufMetadata) -> int:
    """Return the size of the weights, in all files of a split model."""
    names = [name for name in split_file_names(file.name) if name != file.name]
    parts = (file.with_name(name) for name in names)
    return metadata.weights_bytes + sum(path.stat().st_size for path in parts if path.is_file())


def estimate_memory(weights: int, shape: ModelShape, settings: ModelSettings) -> MemoryEstimate:
    """Estimate the memory of a model with the settings of `plan`: `ctx_size` is that of all slots together."""
    slot = settings.ctx_size // max(settings.parallel, 1)
    key_bits, value_bits = (BITS_PER_CACHE_VALUE[name] for name in (settings.cache_type_k, settings.cache_type_v))
    values = 0.0 if shape.is_latent else shape.value_length * value_bits
    bits_per_head = shape.key_length * key_bits + values
    context = 0.0
    for layer in range(shape.layers):
        heads = shape.kv_heads[layer % len(shape.kv_heads)] if shape.kv_heads else 0
        length = slot
        # An unknown pattern counts as all layers: an estimate that is too low costs less than a false warning.
        has_window = shape.window_layers is None or shape.window_layers[layer % len(shape.window_layers)]
        if shape.window and has_window and not settings.swa_full:
            length = min(slot, shape.window + settings.ubatch_size)
        context += length * settings.parallel * heads * bits_per_head / 8
    columns = BUFFER_WIDTHS * shape.width + 2 * shape.hidden + slot / 2
    if settings.flash_attn == "off":
        columns += shape.heads * slot
    return MemoryEstimate(weights=weights, context=round(context), buffers=round(4 * settings.ubatch_size * columns))


def check_memory(
    settings: ModelSettings,
    needed: Iterable[MemoryEstimate],
    status: MemoryStatus | None,
    devices: Sequence[Device] = (),
) -> str | None:
    """Return a warning if the model may not fit: None if it does, or if the free memory is unknown.

    `needed` are the estimates of the model and of its draft model. Raises `EngineError` if it surely does not fit.
    """
    estimates = list(needed)
    fields = MemoryEstimate.__struct_fields__
    weights, context, buffers = (sum(getattr(estimate, name) for estimate in estimates) for name in fields)
    need = weights + context + buffers
    gpu_free = sum(device.free for device in devices)
    uses_gpu = bool(gpu_free) and settings.gpu_layers != 0
    is_all_on_gpu = uses_gpu and settings.gpu_layers == ALL_LAYERS
    if status is None and not is_all_on_gpu:
        return None
    free = gpu_free if uses_gpu else 0
    if status is not None and not is_all_on_gpu:
        free += status.free
        if not settings.mmap and not uses_gpu and weights > status.most:
            raise EngineError(
                f"its weights need {gigabytes(weights)}, and there are {gigabytes(status.most)} at all; leave out "
                "--no-mmap, or use a smaller model",
                is_permanent=True,
            )
    if need <= free:
        return None
    return (
        f"the model needs about {gigabytes(need)} ({gigabytes(weights)} weights, {gigabytes(context)} context, "
        f"{gigabytes(buffers)} buffers), and {gigabytes(free)} are free{' on the GPU' if is_all_on_gpu else ''}: use a "
        f"smaller --ctx-size, --parallel or model, or --cache-type-k q8_0 --cache-type-v q8_0"
    )


def gigabytes(size: float) -> str:
    """Format a size with two significant digits at least."""
    return f"{size / 1e9:.{1 if size >= 1e9 else 2}f} GB"


def read_memory(*, root: Path = _SYSTEM) -> MemoryStatus | None:
    """Return the memory of this machine, or less if the control group of this process has less; None if unknown."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        sizes = {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (line.partition(":") for line in lines)
            if rest.strip()
        }
        free, swap = sizes["MemAvailable"], sizes.get("SwapTotal", 0)
        most = sizes["MemTotal"] + swap
    except (OSError, ValueError, KeyError):
        return None
    for folder in control_groups("memory", root):
        limit, used = (
            _read_size(folder, "memory.max", "memory.limit_in_bytes"),
            _read_size(folder, "memory.current", "memory.usage_in_bytes"),
        )
        if limit is None or used is None:
            continue
        # The file cache is reclaimed when the limit is reached.
        free = min(free, max(limit - used + _file_cache(folder), 0))
        own_swap = _read_size(folder, "memory.swap.max")
        most = min(most, limit + (swap if own_swap is None else min(own_swap, swap)))
    return MemoryStatus(free=free, most=most)


def _read_size(folder: Path, *names: str) -> int | None:
    """Return the number in the first of these files that exists; None if there is none, or no limit."""
    text = next(filter(None, (read_system_file(folder / name).strip() for name in names)), "")
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def _file_cache(folder: Path) -> int:
    lines = read_system_file(folder / "memory.stat").splitlines()
    figures = dict(words for line in lines if len(words := line.split()) == 2)
    names = ("inactive_file", "active_file")
    # Version 1 has totals with the groups inside it.
    sizes = [figures.get(f"total_{name}") or figures.get(name) or "0" for name in names]
    return sum(int(size) for size in sizes if size.isdigit())
