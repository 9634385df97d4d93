"""Estimated and free memory: sizes of generated models, limits of containers, and the resulting warnings."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.engines import files, stand_in_server
from tests.engines.system_files import write
from tests.models.gguf_writer import ALIGNMENT, Array, Kind, Value
from welldone.config.model import ALL_LAYERS, ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.memory import (
    Device,
    MemoryEstimate,
    MemoryStatus,
    check_memory,
    estimate_memory,
    read_memory,
    weights_of,
)
from welldone.engines.models.gguf import LAYERS_LIMIT, ModelShape, read_metadata
from welldone.engines.plan import make_plan

GB = 10**9
SMALL: dict[str, Value] = {
    "llama__embedding_length": 576,
    "llama__block_count": 30,
    "llama__feed_forward_length": 1536,
    "llama__attention__head_count": 9,
    "llama__attention__head_count_kv": 3,
}
"""The dimensions of the built-in model."""


def shape(folder: Path, **more: Value) -> ModelShape:
    """Read the shape of a generated file."""
    path = folder / "m.gguf"
    path.write_bytes(files.model(**SMALL | more))
    return read_metadata(path).shape


def settings(**changes: Any) -> ModelSettings:  # noqa: ANN401 - those of ModelSettings
    return ModelSettings(name="m", **{"ctx_size": 16384, "parallel": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "context_mib", "buffers_mib"),
    [
        ({}, 360, 18.6),
        ({"flash_attn": "off"}, 360, 87.5),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 360 * 17 / 32, 18.6),
    ],
)
def test_the_estimate_is_what_llama_cpp_allocates(
    tmp_path: Path, changes: dict[str, Any], context_mib: float, buffers_mib: float
) -> None:
    """The sizes in the log of b11549 for the built-in model with these settings."""
    estimate = estimate_memory(10**8, shape(tmp_path), settings(**changes))
    assert estimate.weights == 10**8
    assert estimate.context / 2**20 == pytest.approx(context_mib)
    assert estimate.buffers / 2**20 == pytest.approx(buffers_mib, rel=0.1)


def by_layer(*values: float) -> Array:
    return Array(Kind.UINT32, values)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"llama__attention__head_count_kv": by_layer(*[3, 0, 0] * 10)}, 1 / 3),
        ({"llama__attention__key_length": 128, "llama__attention__value_length": 128}, 2),
        ({"llama__attention__kv_lora_rank": 512}, 1 / 2),
        ({"llama__attention__sliding_window": 512}, 1 / 4),
        (
            {
                "llama__attention__sliding_window": 512,
                "llama__attention__sliding_window_pattern": Array(Kind.BOOL, [True, False] * 15),
            },
            5 / 8,
        ),
        ({"llama__attention__head_count_kv": Array(Kind.STRING, ["3"])}, 0),
        ({"llama__block_count": 0}, 0),
        ({"llama__block_count": 2**32 - 1}, LAYERS_LIMIT / 30),
    ],
    ids=[
        "hybrid",
        "long heads",
        "latent",
        "window",
        "every second window",
        "not numbers",
        "unknown",
        "billions of layers",
    ],
)
def test_other_architectures_have_other_contexts(tmp_path: Path, changes: dict[str, Value], share: float) -> None:
    plain = estimate_memory(0, shape(tmp_path), settings()).context
    assert estimate_memory(0, shape(tmp_path, **changes), settings()).context == pytest.approx(plain * share)


def test_without_key_value_heads_all_heads_count(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(files.model(**{key: value for key, value in SMALL.items() if not key.endswith("kv")}))
    plain = estimate_memory(0, shape(tmp_path), settings()).context
    path.write_bytes(files.model(**{key: value for key, value in SMALL.items() if not key.endswith("kv")}))
    assert estimate_memory(0, read_metadata(path).shape, settings()).context == plain * 3


def test_all_files_of_a_split_model_count(tmp_path: Path) -> None:
    data = files.model()
    first = tmp_path / "m-00001-of-00003.gguf"
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(data)
    assert 0 <= weights_of(first, read_metadata(first)) - 4000 - len(data) < ALIGNMENT


NEED = MemoryEstimate(weights=8 * GB, context=GB, buffers=GB // 2)
GPUS = [Device(name="CUDA0", free=6 * GB), Device(name="CUDA1", free=6 * GB)]


@pytest.mark.parametrize(
    ("free_gb", "gpus", "changes", "expected"),
    [
        (10, [], {}, None),
        (8, [], {}, "needs about 9.5 GB (8.0 GB weights, 1.0 GB context, 0.50 GB buffers), and 8.0 GB are free: use"),
        (8, GPUS[:1], {}, None),
        (3, GPUS[:1], {}, "9.0 GB are free: use"),
        (8, GPUS[:1], {"gpu_layers": 0}, "8.0 GB are free: use"),
        (1, GPUS, {"gpu_layers": ALL_LAYERS}, None),
        (99, GPUS[:1], {"gpu_layers": ALL_LAYERS}, "6.0 GB are free on the GPU: use"),
        (None, GPUS[:1], {"gpu_layers": ALL_LAYERS}, "6.0 GB are free on the GPU: use"),
        (None, [], {}, None),
        (1, [], {"mmap": False}, "1.0 GB are free: use"),
    ],
)
def test_a_model_that_may_not_fit_is_a_warning(
    free_gb: int | None, gpus: list[Device], changes: dict[str, Any], expected: str | None
) -> None:
    status = None if free_gb is None else MemoryStatus(free=free_gb * GB, most=100 * GB)
    warning = check_memory(settings(**changes), [NEED], status, gpus)
    assert warning is None if expected is None else expected in str(warning)


def test_the_draft_model_counts() -> None:
    draft = MemoryEstimate(weights=GB, context=0, buffers=0)
    status = MemoryStatus(free=10 * GB, most=10 * GB)
    assert check_memory(settings(), [NEED], status) is None
    assert "needs about 10.5 GB (9.0 GB weights" in str(check_memory(settings(), [NEED, draft], status))


def test_only_weights_that_cannot_fit_are_refused() -> None:
    status = MemoryStatus(free=GB, most=4 * GB)
    with pytest.raises(EngineError, match=r"its weights need 8\.0 GB, and there are 4\.0 GB at all") as caught:
        check_memory(settings(mmap=False), [NEED], status)
    assert caught.value.is_permanent
    assert check_memory(settings(mmap=False), [NEED], status, GPUS) is None
    assert check_memory(settings(mmap=True), [NEED], status)


MEMINFO = (
    "MemTotal: 16000000 kB\nMemFree: 10 kB\nMemAvailable: 8000000 kB\nHugePages_Total:       0\nSwapTotal: 1000000 kB"
)
KB = 1024


@pytest.mark.parametrize(
    ("system", "free_kb", "most_kb"),
    [
        ({}, 8_000_000, 17_000_000),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, 8_000_000, 17_000_000),
        (
            {
                "proc/self/cgroup": "0::/pod/c",
                "sys/fs/cgroup/pod/memory.max": str(4_000_000 * KB),
                "sys/fs/cgroup/pod/memory.current": str(3_000_000 * KB),
                "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {500_000 * KB}\nactive_file {250_000 * KB}",
                "sys/fs/cgroup/pod/memory.swap.max": "0",
            },
            1_750_000,
            4_000_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/pod\n1:cpu:/",
                "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": str(4_000_000 * KB),
                "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": str(3_000_000 * KB),
                "sys/fs/cgroup/memory/pod/memory.stat": f"inactive_file 1\ntotal_inactive_file {100_000 * KB}",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
            },
            1_100_000,
            5_000_000,
        ),
    ],
    ids=["machine", "no limit", "version 2", "version 1"],
)
def test_the_free_memory_is_that_of_the_container(
    tmp_path: Path, system: dict[str, str], free_kb: int, most_kb: int
) -> None:
    status = read_memory(root=write(tmp_path, {"proc/meminfo": MEMINFO, **system}))
    assert status == MemoryStatus(free=free_kb * KB, most=most_kb * KB)


def test_the_free_memory_of_other_systems_is_unknown(tmp_path: Path) -> None:
    assert read_memory(root=tmp_path) is None


DEVICES = (
    "Available devices:\n  CUDA0: NVIDIA H200 (143771 MiB, 2 MiB free)\n  CUDA1: A (b) (1 MiB, 1000000 MiB free)\n"
)


def plan_warnings(folder: Path, model: Path, devices: str = DEVICES, **changes: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Return the warnings of a plan for a llama-server with these devices."""
    program = stand_in_server.install(folder / "llama-server", devices=devices)
    own = ModelSettings(name="m", file=model, engine=program, ctx_size=64, **changes)
    environment = {"PATH": os.environ["PATH"], "WELLDONE_ENGINES": str(folder)}
    return make_plan(own, models_folder=folder, socket_folder=folder, environment=environment).warnings


def test_the_devices_of_a_llama_server_have_their_own_free_memory(short_path: Path, tiny_model: Path) -> None:
    assert plan_warnings(short_path, tiny_model, gpu_layers=ALL_LAYERS) == ()
    for changes in ({"device": ("CUDA0",)}, {"split_mode": "none"}):
        (warning,) = plan_warnings(short_path, tiny_model, gpu_layers=ALL_LAYERS, **changes)
        assert "0.00 GB are free on the GPU" in warning
    assert plan_warnings(short_path, tiny_model, gpu_layers=ALL_LAYERS, split_mode="none", main_gpu=1) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": ("CUDA2",)}, r"this engine has no device CUDA2 \(--device\): it has CUDA0, CUDA1"),
        (
            {"device": ("CUDA0",), "devices": "Available devices:\n  (none)\n"},
            "no device CUDA0 .*: it has no GPU; `welldone",
        ),
        ({"draft_device": ("Vulkan0",)}, "no device Vulkan0"),
        ({"split_mode": "none", "main_gpu": 2}, r"there is no GPU 2 \(--main-gpu\)"),
    ],
)
def test_a_device_that_is_not_there_is_a_permanent_error(
    short_path: Path, tiny_model: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        plan_warnings(short_path, tiny_model, **changes)
    assert caught.value.is_permanent
