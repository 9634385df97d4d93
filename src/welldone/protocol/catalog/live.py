"""Rules about liveness: silence, stop strings, client disconnects (`live-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Detection, Repairability, Rule, Severity

CANCEL_ON_DISCONNECT = Rule(
    id="live-cancel-on-disconnect",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="When the client goes away, generation stops within a token or so.",
    affects=("agents that try again: each try adds an answer that nobody reads, until the server does nothing else",),
    repairability=Repairability.LOSSLESS,
    repair="close the upstream request at once",
    detection=Detection.PROBE,
)
STOP_NOT_LEAKED = Rule(
    id="live-stop-not-leaked",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="No part of a stop string is ever sent, not even where it spans tokens.",
    affects=("ReAct-type parsers: read the stop string as part of the answer",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the stop strings are passed on, and the upstream has to keep to them",
    detection=Detection.PROBE,
)
STOP_HOLDBACK_FLUSHED = Rule(
    id="live-stop-holdback-flushed",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Text that was held back for a possible stop string is sent when generation ends without it.",
    affects=("openai-python, openai-node: lose the end of the answer without an error",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; what was held back was never sent",
    detection=Detection.PROBE,
)
EMPTY_GENERATION = Rule(
    id="live-empty-generation",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="An answer of no tokens still has its role, its finish_reason and [DONE], and usage if asked for.",
    affects=(
        "openai-node .stream(): 'missing role for choice 0', or 'request ended without sending any chunks'",
        "LangChain: raises 'No generation chunks were returned'",
    ),
    repairability=Repairability.PARTIAL,
    repair="write what is missing; a stream of [DONE] alone becomes an error",
    detection=Detection.PROBE,
)
KEEPALIVE_IN_SILENCE = Rule(
    id="live-keepalive-in-silence",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Something is sent every 15 s or so: in a long prompt, in hidden reasoning, while a call is held back.",
    affects=(
        "openai-node, AI SDK: their fetch gives up after 300 s without a byte ('terminated')",
        "load balancers: close the connection after 60 s without a byte",
        "Codex: ends the turn after 300 s without an event",
    ),
    repairability=Repairability.LOSSLESS,
    repair="send a comment after each 10 s of silence, at most 45 in a row",
    detection=Detection.PROBE,
)
NO_SPECIAL_TOKENS = Rule(
    id="live-no-special-tokens",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Tokens of the template and of the end of text do not stand in content.",
    affects=("openai-python, openai-node, AI SDK, LangChain: show '<|im_end|>' as part of the answer",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the same letters may be what the user asked for",
    detection=Detection.PROBE,
)
