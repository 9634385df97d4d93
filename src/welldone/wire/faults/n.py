"""Faults of several choices; each id begins with `n-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

INDEX_INT = Fault(
    id="n-index-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every choice has an integer index, and there are no more choices than were requested.",
    hurts=(
        "openai-python .stream(): TypeError, a list index must be an integer",
        "openai-node .stream(): ends without a message when the index is missing",
        "AI SDK openai: rejects the chunk",
        "Zed: reads u32 and fails to read the chunk",
        "clients that read choices[0] of each chunk: mix the texts of two choices where one was requested",
    ),
    mend=Mend.LOSSLESS,
    how="write 0 when there is one choice; turn a string into a number; drop choices beyond those requested",
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
EACH_COMPLETE = Fault(
    id="n-each-complete",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Each choice has its own role, deltas and finish_reason.",
    hurts=(
        "openai-node .stream(): 'missing role for choice 1' or 'missing finish_reason for choice 1'",
        "openai-python, openai-node: report no reason for that choice",
    ),
    mend=Mend.LOSSLESS,
    how="write a missing role; see fin-always-sent for a missing reason",
    by=Hearing.PROBE,
)
REFUSE_IF_UNSUPPORTED = Fault(
    id="n-refuse-if-unsupported",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    rule="A server that cannot give several choices answers 400 rather than giving fewer.",
    hurts=(),
    mend=Mend.PARTIAL,
    how="ask once for each choice, unless the upstream is known to make several; too few are an error",
    by=Hearing.PROBE,
)
