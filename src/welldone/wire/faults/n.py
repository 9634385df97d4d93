"""Faults of several choices; each id begins with `n-`."""

from welldone.wire.faults.fault import Fault, Mend, Severity

INDEX_INT = Fault(
    id="n-index-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every choice has an integer index.",
    hurts=(
        "openai-python .stream(): TypeError, a list index must be an integer",
        "openai-node .stream(): ends without a message when the index is missing",
        "AI SDK openai: rejects the chunk",
        "Zed: reads u32 and fails to read the chunk",
    ),
    mend=Mend.LOSSLESS,
    how="write 0 when there is one choice; turn a string into a number",
)
FIRST_ORDER = Fault(
    id="n-first-order",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Choices first appear in the order 0, 1, 2 and so on.",
    hurts=("openai-python .stream(): IndexError when index 1 comes first",),
    mend=Mend.LOSSLESS,
    how="send a role chunk for the choices before it",
)
ONE_CHOICE_PER_CHUNK = Fault(
    id="n-one-choice-per-chunk",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="Send one choice per chunk and keep its index; deltas of different choices may interleave.",
    hurts=("openai-go: its older state and most clients for one choice read only choices[0]",),
    mend=Mend.LOSSLESS,
    how="send one chunk for each choice",
)
