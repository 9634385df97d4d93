"""Rules about several choices (`n-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

INDEX_INT = Rule(
    id="n-index-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Every choice has an integer index, and there are no more choices than were requested.",
    affects=(
        "openai-python .stream(): TypeError, a list index must be an integer",
        "openai-node .stream(): ends without a message when the index is missing",
        "AI SDK openai: rejects the chunk",
        "Zed: reads u32 and fails to read the chunk",
        "clients that read choices[0] of each chunk: mix the texts of two choices where one was requested",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write 0 when there is one choice; turn a string into a number; drop choices beyond those requested",
)
FIRST_ORDER = Rule(
    id="n-first-order",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Choices first appear in the order 0, 1, 2 and so on.",
    affects=("openai-python .stream(): IndexError when index 1 comes first",),
    repairability=Repairability.LOSSLESS,
    repair="send a role chunk for the choices before it",
)
ONE_CHOICE_PER_CHUNK = Rule(
    id="n-one-choice-per-chunk",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="Send one choice per chunk and keep its index; deltas of different choices may interleave.",
    affects=("openai-go: its older state and most clients for one choice read only choices[0]",),
    repairability=Repairability.LOSSLESS,
    repair="send one chunk for each choice",
)
EACH_COMPLETE = Rule(
    id="n-each-complete",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Each choice has its own role, deltas and finish_reason.",
    affects=(
        "openai-node .stream(): 'missing role for choice 1' or 'missing finish_reason for choice 1'",
        "openai-python, openai-node: report no reason for that choice",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write a missing role; see fin-always-sent for a missing reason",
    detection=Detection.PROBE,
)
REFUSE_IF_UNSUPPORTED = Rule(
    id="n-refuse-if-unsupported",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    summary="A server that cannot give several choices answers 400 rather than giving fewer.",
    affects=(),
    repairability=Repairability.PARTIAL,
    repair="ask once for each choice, unless the upstream is known to make several; too few are an error",
    detection=Detection.PROBE,
)
