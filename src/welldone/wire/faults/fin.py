"""Faults of finish_reason; each id begins with `fin-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

KEY_PRESENT = Fault(
    id="fin-key-present",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="finish_reason is present on every choice, null until the end.",
    hurts=("mattermost ai plugin: read nothing (mudler/LocalAI#1744)",),
    mend=Mend.LOSSLESS,
    how="write null",
)
NULL_NOT_EMPTY = Fault(
    id="fin-null-not-empty",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="While generating it is JSON null, never the empty string.",
    hurts=(
        "openai-dotnet: throws ArgumentOutOfRangeException",
        "Zed: ends the turn at the first chunk",
        "goose: leaves its tool-call loop, so arguments are cut",
        "org-ai: inserts a new prompt after each token",
        "AI SDK openai-compatible, AI SDK openai: '' after the finish chunk makes the reason 'other'",
    ),
    mend=Mend.LOSSLESS,
    how="write null",
)
NULL_NOT_STRING = Fault(
    id="fin-null-not-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule='It is never the string "null".',
    hurts=(
        "LangChain: reports 'nullnullnullstop'",
        "openai-dotnet: throws on the unknown value (PowerShell/AIShell#350)",
    ),
    mend=Mend.LOSSLESS,
    how="write null",
)
CLOSED_ENUM = Fault(
    id="fin-closed-enum",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The value is one of stop, length, tool_calls, content_filter, function_call.",
    hurts=(
        "openai-dotnet: throws",
        "async-openai: the chunk fails to parse",
        "pydantic-ai: drops the reason",
        "AI SDK openai-compatible, AI SDK openai: report 'other'",
        "openai-python, openai-node, LangChain: hand on a value that callers do not know",
    ),
    mend=Mend.LOSSLESS,
    how="map the documented words of other providers; interruptions and unknown words become an error event",
)
EXACTLY_ONCE = Fault(
    id="fin-exactly-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Each choice has exactly one chunk with a non-null finish_reason.",
    hurts=(
        "LangChain: reports 'tool_callsstop'",
        "openai-python, openai-node, AI SDK, pydantic-ai: report the last value, so tool calls end with 'stop'",
    ),
    mend=Mend.LOSSLESS,
    how="keep the first of tool_calls/function_call, drop the rest",
)
ALWAYS_SENT = Fault(
    id="fin-always-sent",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="A finished choice always gets its finish_reason.",
    hurts=(
        "openai-node .stream(): 'missing finish_reason for choice 0'",
        "AI SDK openai-compatible: 'Response stream ended without a finish reason.'",
        "openai-python, openai-node, LangChain: report no reason",
        "AI SDK openai: reports 'other'",
        "pydantic-ai, litellm: invent 'stop'",
        "hermes-agent, pi: take the stream as broken",
    ),
    mend=Mend.PARTIAL,
    how="only if upstream sent [DONE]: write stop or tool_calls and say so; at a bare EOF send an error",
)
LAST_OF_CHOICE = Fault(
    id="fin-last-of-choice",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="No delta for a choice follows its finish chunk, and no later chunk resets it.",
    hurts=(
        "AI SDK openai-compatible, AI SDK openai: a later '' makes the reason 'other'",
        "openai-go: every later chunk overwrites the reason",
    ),
    mend=Mend.LOSSLESS,
    how="hold the finish chunk until the choice is really done",
)
OWN_CHUNK = Fault(
    id="fin-own-chunk",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="OpenAI sends finish_reason on its own chunk with empty delta; joining it to the last text is tolerated.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="split it into two chunks",
)
TOOL_CALLS = Fault(
    id="fin-tool-calls",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule=(
        "If tools were called under auto or required the reason is tool_calls; with a named tool_choice "
        "OpenAI itself says stop, so accept both there."
    ),
    hurts=(
        "Zed: finishes tool use only on 'tool_calls'",
        "vercel/workflow: looks at the reason alone, so the calls are never run",
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai: hand 'stop' on to loops that end at it",
    ),
    mend=Mend.LOSSLESS,
    how="rewrite stop to tool_calls when a complete call was streamed",
)
LENGTH = Fault(
    id="fin-length",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="An answer that hits the token limit ends with length, never with stop.",
    hurts=(
        "openai-python, openai-node: their parse helpers fail on torn JSON, and do not say LengthFinishReasonError",
        "agents that ask again after length: keep half an answer",
    ),
    mend=Mend.REPORT,
    how="report; that a model stopped right at the limit cannot be told from a cut",
    by=Hearing.PROBE,
)
FUNCTION_CALL_LEGACY = Fault(
    id="fin-function-call-legacy",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="function_call appears only when the request used functions.",
    hurts=("AI SDK: says 'tool-calls', but ignores delta.function_call, so there is no call",),
    mend=Mend.LOSSLESS,
    how="translate it to tool_calls",
)
