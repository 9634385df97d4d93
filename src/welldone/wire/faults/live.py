"""Faults of liveness: silence, stop strings, clients that leave; each id begins with `live-`."""

from welldone.wire.faults.fault import EVERYWHERE, Fault, Hearing, Mend, Severity

CANCEL_ON_DISCONNECT = Fault(
    id="live-cancel-on-disconnect",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="When the client goes away, generation stops within a token or so.",
    hurts=("agents that try again: each try adds an answer that nobody reads, until the server does nothing else",),
    mend=Mend.LOSSLESS,
    how="close the upstream request at once",
    by=Hearing.PROBE,
)
STOP_NOT_LEAKED = Fault(
    id="live-stop-not-leaked",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="No part of a stop string is ever sent, not even where it spans tokens.",
    hurts=("ReAct-type parsers: read the stop string as part of the answer",),
    mend=Mend.REPORT,
    how="report; the stop strings are passed on, and the upstream has to keep to them",
    by=Hearing.PROBE,
)
STOP_HOLDBACK_FLUSHED = Fault(
    id="live-stop-holdback-flushed",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Text that was held back for a possible stop string is sent when generation ends without it.",
    hurts=("openai-python, openai-node: lose the end of the answer, and nothing tells them",),
    mend=Mend.REPORT,
    how="report; what was held back was never sent",
    by=Hearing.PROBE,
)
EMPTY_GENERATION = Fault(
    id="live-empty-generation",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="An answer of no tokens still has its role, its finish_reason and [DONE], and usage if asked for.",
    hurts=(
        "openai-node .stream(): 'missing role for choice 0', or 'request ended without sending any chunks'",
        "LangChain: raises 'No generation chunks were returned'",
    ),
    mend=Mend.PARTIAL,
    how="write what is missing; a stream of [DONE] alone becomes an error",
    by=Hearing.PROBE,
)
KEEPALIVE_IN_SILENCE = Fault(
    id="live-keepalive-in-silence",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Something is sent every 15 s or so: in a long prompt, in hidden reasoning, while a call is held back.",
    hurts=(
        "openai-node, AI SDK: their fetch gives up after 300 s without a byte ('terminated')",
        "load balancers: close the connection after 60 s without a byte",
        "Codex: ends the turn after 300 s without an event",
    ),
    mend=Mend.LOSSLESS,
    how="send a comment after each 10 s of silence, at most 45 in a row",
    by=Hearing.PROBE,
)
NO_SPECIAL_TOKENS = Fault(
    id="live-no-special-tokens",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Tokens of the template and of the end of text do not stand in content.",
    hurts=("openai-python, openai-node, AI SDK, LangChain: show '<|im_end|>' as part of the answer",),
    mend=Mend.REPORT,
    how="report; the same letters may be what the user asked for",
    by=Hearing.PROBE,
)
