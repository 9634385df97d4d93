"""Rules about the end of a stream (`end-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Repairability, Rule, Severity

DONE_SENT = Rule(
    id="end-done-sent",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="A successful stream ends with the event data: [DONE].",
    affects=(
        "org-ai: only [DONE] ends the request, so it never ends",
        "gptel: collects tool calls and token usage only at [DONE], so both are lost",
        "inference-benchmarker: the request's clock is not stopped, since the finish chunk has no text",
    ),
    repairability=Repairability.LOSSLESS,
    repair="append after the last event if finish_reason was seen for every choice",
)
DONE_EXACT = Rule(
    id="end-done-exact",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="The sentinel is exactly 'data: [DONE]': with data:, upper case, no quotes, no trailing space.",
    affects=(
        "AI SDK openai-compatible, AI SDK openai: a trailing space gives AI_JSONParseError and finish 'error'",
        "openai-dotnet, async-openai, Zed, langchain4j, inference-benchmarker: compare exactly and parse it as JSON",
        'openai-python, LangChain, pydantic-ai: AttributeError at a quoted "[DONE]"',
        "openai-node .stream(): 'chunk.choices is not iterable' at a quoted \"[DONE]\"",
        'litellm: MidStreamFallbackError at a quoted "[DONE]"',
    ),
    repairability=Repairability.LOSSLESS,
    repair="write data: [DONE] in its place",
)
DONE_LAST = Rule(
    id="end-done-last",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Nothing follows [DONE]; it is sent once.",
    affects=(
        "openai-python, openai-node, LangChain: usage sent after [DONE] is lost",
        "pydantic-ai: usage sent after [DONE] is lost, it reports 0",
        "litellm: usage sent after [DONE] is lost, it reports its own estimate",
    ),
    repairability=Repairability.LOSSLESS,
    repair="hold [DONE] until the end of the upstream body and move late chunks before it",
)
LAST_EVENT_TERMINATED = Rule(
    id="end-last-event-terminated",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="The last event is followed by its blank line before EOF.",
    affects=(
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: the last event is lost without an error",
    ),
    repairability=Repairability.LOSSLESS,
    repair="hand out the pending event at the end if it parses",
)
NO_EARLY_EOF = Rule(
    id="end-no-early-eof",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Do not close before finish_reason; an early EOF means failure, not success.",
    affects=(
        "openai-node .stream(): 'missing finish_reason for choice 0'",
        "AI SDK openai-compatible: 'Response stream ended without a finish reason.'",
        "openai-python, openai-node, AI SDK openai, LangChain, pydantic-ai, litellm: take the cut answer as whole",
        "hermes-agent: ran tool calls from a cut stream",
    ),
    repairability=Repairability.PARTIAL,
    repair="send an error event and [DONE] instead of a silent end",
)
