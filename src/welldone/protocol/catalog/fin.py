"""Rules about finish_reason (`fin-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

KEY_PRESENT = Rule(
    id="fin-key-present",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="finish_reason is present on every choice, null until the end.",
    affects=("mattermost ai plugin: read nothing (mudler/LocalAI#1744)",),
    repairability=Repairability.LOSSLESS,
    repair="write null",
)
NULL_NOT_EMPTY = Rule(
    id="fin-null-not-empty",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="While generating it is JSON null, never the empty string.",
    affects=(
        "openai-dotnet: throws ArgumentOutOfRangeException",
        "Zed: ends the turn at the first chunk",
        "goose: leaves its tool-call loop, so arguments are cut",
        "org-ai: inserts a new prompt after each token",
        "AI SDK openai-compatible, AI SDK openai: '' after the finish chunk makes the reason 'other'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write null",
)
NULL_NOT_STRING = Rule(
    id="fin-null-not-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary='It is never the string "null".',
    affects=(
        "LangChain: reports 'nullnullnullstop'",
        "openai-dotnet: throws on the unknown value (PowerShell/AIShell#350)",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write null",
)
CLOSED_ENUM = Rule(
    id="fin-closed-enum",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The value is one of stop, length, tool_calls, content_filter, function_call.",
    affects=(
        "openai-dotnet: throws",
        "async-openai: the chunk fails to parse",
        "pydantic-ai: drops the reason",
        "AI SDK openai-compatible, AI SDK openai: report 'other'",
        "openai-python, openai-node, LangChain: hand on a value that callers do not know",
    ),
    repairability=Repairability.LOSSLESS,
    repair="map the documented reasons of other providers; interruptions and unknown reasons become an error event",
)
EXACTLY_ONCE = Rule(
    id="fin-exactly-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Each choice has exactly one chunk with a non-null finish_reason.",
    affects=(
        "LangChain: reports 'tool_callsstop'",
        "openai-python, openai-node, AI SDK, pydantic-ai: report the last value, so tool calls end with 'stop'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="keep the first of tool_calls/function_call, drop the rest",
)
ALWAYS_SENT = Rule(
    id="fin-always-sent",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="A finished choice always gets its finish_reason.",
    affects=(
        "openai-node .stream(): 'missing finish_reason for choice 0'",
        "AI SDK openai-compatible: 'Response stream ended without a finish reason.'",
        "openai-python, openai-node, LangChain: report no reason",
        "AI SDK openai: reports 'other'",
        "pydantic-ai, litellm: invent 'stop'",
        "hermes-agent, pi: take the stream as broken",
    ),
    repairability=Repairability.PARTIAL,
    repair="only if upstream sent [DONE]: write stop or tool_calls and report it; at a bare EOF send an error",
)
LAST_OF_CHOICE = Rule(
    id="fin-last-of-choice",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="No delta for a choice follows its finish chunk, and no later chunk resets it.",
    affects=(
        "AI SDK openai-compatible, AI SDK openai: a later '' makes the reason 'other'",
        "openai-go: every later chunk overwrites the reason",
    ),
    repairability=Repairability.LOSSLESS,
    repair="hold the finish chunk until the choice is really done",
)
OWN_CHUNK = Rule(
    id="fin-own-chunk",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="OpenAI sends finish_reason on its own chunk with empty delta; joining it to the last text is tolerated.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="split it into two chunks",
)
TOOL_CALLS = Rule(
    id="fin-tool-calls",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary=(
        "If tools were called under auto or required the reason is tool_calls; with a named tool_choice "
        "OpenAI itself sends stop, so accept both there."
    ),
    affects=(
        "Zed: finishes tool use only on 'tool_calls'",
        "vercel/workflow: looks at the reason alone, so the calls are never run",
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai: hand 'stop' on to loops that end at it",
    ),
    repairability=Repairability.LOSSLESS,
    repair="rewrite stop to tool_calls when a complete call was streamed",
)
LENGTH = Rule(
    id="fin-length",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="An answer that hits the token limit ends with length, never with stop.",
    affects=(
        "openai-python, openai-node: their parse helpers fail on truncated JSON, without LengthFinishReasonError",
        "agents that ask again after length: keep half an answer",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; a model that stopped right at the limit looks the same as a cut",
    detection=Detection.PROBE,
)
FUNCTION_CALL_LEGACY = Rule(
    id="fin-function-call-legacy",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="function_call appears only when the request used functions.",
    affects=("AI SDK: reports 'tool-calls', but ignores delta.function_call, so there is no call",),
    repairability=Repairability.LOSSLESS,
    repair="translate it to tool_calls",
)
