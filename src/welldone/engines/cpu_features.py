"""Instruction sets of this CPU that llama.cpp can use, under llama.cpp's names, and quantisations that are slow on it.

What is slow was measured with `benchmarks/quantisations.py` on AVX2 and AVX-512; docs/engines.md has the figures.
Which types llama.cpp rearranges for faster prompts, and on which CPUs: ggml/src/ggml-cpu/repack.cpp, amx/common.h.
"""

import platform
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

_FEATURES: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "AVX": ("avx",),
        "AVX2": ("avx2",),
        "F16C": ("f16c",),
        "FMA": ("fma",),
        "BMI2": ("bmi2",),
        "AVX_VNNI": ("avx_vnni",),
        # What GGML_AVX512 needs: ggml/src/ggml-cpu/CMakeLists.txt
        "AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
        "AVX512_VBMI": ("avx512vbmi",),
        "AVX512_VNNI": ("avx512_vnni",),
        "AVX512_BF16": ("avx512_bf16",),
        "AMX_INT8": ("amx_tile", "amx_int8"),
    },
    "aarch64": {
        "NEON": ("asimd",),
        "FP16_VA": ("asimdhp",),
        "DOTPROD": ("asimddp",),
        "MATMUL_INT8": ("i8mm",),
        "SVE": ("sve",),
        "SME": ("sme",),
    },
}
"""Names in llama.cpp's system info (`ggml_backend_cpu_get_features`), and the flags of /proc/cpuinfo that they need."""

_X86_INSTRUCTIONS = re.compile(
    "amx|avx|sse|ssse|fma|f16c|bmi|abm|adx|aes|gfni|vaes|vpclmul|pclmul|sha|movbe|movdir|popcnt|rdrand|rdseed|xop|tbm"
)
"""Flags that stand for instructions a compiler may emit; the others depend on kernel and hypervisor."""

_SYSTEM_INFO = re.compile(r"([A-Z][A-Z0-9_]+) = (\d+)")


@cache
def cpu_flags(path: Path = CPU_INFO) -> frozenset[str]:
    """Return the instruction sets of this CPU as Linux names them; empty on other systems."""
    match = re.search(r"(?m)^(flags|Features)\s*:(.*)$", read_system_file(path))
    if match is None:
        return frozenset()
    words = match[2].split()
    return frozenset(words if match[1] == "Features" else filter(_X86_INSTRUCTIONS.match, words))


def read_system_file(path: Path) -> str:
    """Return the text of a file of Linux; empty on other systems, and if its process or thread has ended."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def usable_features(flags: Iterable[str], machine: str = platform.machine()) -> tuple[str, ...]:
    """Return llama.cpp's names of what a CPU with these flags supports."""
    present = set(flags)
    return tuple(name for name, needed in _FEATURES.get(machine, {}).items() if present.issuperset(needed))


def parse_system_info(text: str) -> tuple[str, ...]:
    """Return the instruction sets in llama.cpp's system info, such as `CPU : AVX = 1 | AVX2 = 1 | OPENMP = 1 |`."""
    known = {name for names in _FEATURES.values() for name in names}
    return tuple(name for name, value in _SYSTEM_INFO.findall(text) if name in known and value != "0")


def cpu_model(path: Path = CPU_INFO) -> str:
    """Return the name of this CPU, for display."""
    match = re.search(r"(?m)^model name\s*: *(.+)$", read_system_file(path))
    return match[1].strip() if match else platform.processor() or platform.machine()


SLOW_TOKENS = {
    "IQ3_S": "Q3_K",
    "IQ3_XXS": "Q3_K",
    "IQ2_S": "Q2_K",
    "IQ2_XS": "Q2_K",
    "IQ2_XXS": "Q2_K",
    "IQ1_M": "Q2_K",
    "IQ1_S": "Q2_K",
}
"""Types with tables: for each value, a CPU loads another part of memory."""

SLOW_PROMPTS = {"Q4_1": "Q4_K", "Q5_0": "Q5_K", "Q5_1": "Q5_K"}
"""Older types, for which llama.cpp has no kernels that compute several tokens of a prompt at once."""

PROMPT_FEATURES = {"AVX2", "DOTPROD", "MATMUL_INT8"}
"""Instruction sets with which the other types have such kernels. AMX has its own, for Q4_1 too."""


def quantisation_note(name: str | None, features: Collection[str]) -> str | None:
    """Return a line about a model whose weights are mostly of this type, on an engine with these features."""
    if name is None:
        return None
    if faster := SLOW_TOKENS.get(name):
        return f"{name} weights generate slowly on a CPU: {faster} ones are 1.6 to 2 times as fast, and somewhat larger"
    faster = SLOW_PROMPTS.get(name)
    if faster is None or PROMPT_FEATURES.isdisjoint(features) or (name == "Q4_1" and "AMX_INT8" in features):
        return None
    return f"{name} weights read prompts slowly on a CPU: {faster} ones are about twice as fast, and not larger"
