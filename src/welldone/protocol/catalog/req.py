"""Rules about requests (`req-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

MAX_TOKENS_BOTH = Rule(
    id="req-max-tokens-both",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="max_completion_tokens and the older max_tokens are both accepted.",
    affects=(
        "gptel: sends max_tokens to compatible servers",
        "AI SDK openai, Pi coding agent: send max_completion_tokens; where it is dropped, answers have no end",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the field is passed on as it came. For local models both count",
    detection=Detection.PROBE,
)
STREAM_OPTIONS = Rule(
    id="req-stream-options",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="stream_options with include_usage and include_obfuscation is accepted; unknown members are ignored.",
    affects=(
        "AI SDK openai, gptel, LangChain: always send include_usage, so every stream is refused",
        "OpenAI Agents SDK: streams end with a 422",
    ),
    repairability=Repairability.PARTIAL,
    repair="usage = false of an upstream leaves include_usage out; other members pass on",
    detection=Detection.PROBE,
)
STOP_FORMS = Rule(
    id="req-stop-forms",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="stop is null, one string, or up to four strings.",
    affects=("callers of openai-python and openai-node: are refused, or the answer runs past its stop string",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the field is passed on as it came. For local models all forms count",
    detection=Detection.PROBE,
)
UNKNOWN_IGNORED = Rule(
    id="req-unknown-ignored",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions", "responses"),
    summary=(
        "Parameters that are not known, and headers such as x-stainless-* and OpenAI-Beta, are ignored, not refused."
    ),
    affects=(
        "Codex: a 400 on tools that are no functions ended every turn",
        "CodeCompanion: a 400 on members of messages that the server did not know",
        "openai-python, openai-node: send x-stainless-* headers with every request",
    ),
    repairability=Repairability.PARTIAL,
    repair="the client's headers do not go upstream; its fields do",
    detection=Detection.PROBE,
)
CONTENT_PARTS = Rule(
    id="req-content-parts",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="message.content is a string or a list of parts, and the role developer is the role system.",
    affects=("AI SDK, Codex, opencode: send lists of parts or the role developer, and are refused",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; messages are passed on as they came. For local models both forms count",
    detection=Detection.PROBE,
)
