"""Quantisations that are slow on a CPU, and a faster one of about the same size.

What is slow was measured with `benchmarks/quantisations.py` on AVX2 and AVX-512; docs/engines.md has the figures.
Which types llama.cpp rearranges for faster prompts, and on which CPUs: ggml/src/ggml-cpu/repack.cpp, amx/common.h.
"""

from collections.abc import Collection

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


def quantisation_note(kind: str | None, features: Collection[str]) -> str | None:
    """Return a line about a model whose weights are mostly of this type, on an engine with these features."""
    if kind is None:
        return None
    if faster := SLOW_TOKENS.get(kind):
        return f"{kind} weights generate slowly on a CPU: {faster} ones are 1.6 to 2 times as fast, and somewhat larger"
    faster = SLOW_PROMPTS.get(kind)
    if faster is None or PROMPT_FEATURES.isdisjoint(features) or (kind == "Q4_1" and "AMX_INT8" in features):
        return None
    return f"{kind} weights read prompts slowly on a CPU: {faster} ones are about twice as fast, and not larger"
