"""Faults of what requests may hold; each id begins with `req-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

MAX_TOKENS_BOTH = Fault(
    id="req-max-tokens-both",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="max_completion_tokens and the older max_tokens are both accepted.",
    hurts=(
        "gptel: sends max_tokens to compatible servers",
        "AI SDK openai, Pi coding agent: send max_completion_tokens; where it is dropped, answers have no end",
    ),
    mend=Mend.REPORT,
    how="report; the field is passed on as it came. For local models both count",
    by=Hearing.PROBE,
)
STREAM_OPTIONS = Fault(
    id="req-stream-options",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="stream_options with include_usage and include_obfuscation is accepted; unknown members are ignored.",
    hurts=(
        "AI SDK openai, gptel, LangChain: always send include_usage, so every stream is refused",
        "OpenAI Agents SDK: streams end with a 422",
    ),
    mend=Mend.PARTIAL,
    how="usage = false of an upstream leaves include_usage out; other members pass on",
    by=Hearing.PROBE,
)
STOP_FORMS = Fault(
    id="req-stop-forms",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="stop is null, one string, or up to four strings.",
    hurts=("callers of openai-python and openai-node: are refused, or the answer runs past its stop string",),
    mend=Mend.REPORT,
    how="report; the field is passed on as it came. For local models all forms count",
    by=Hearing.PROBE,
)
UNKNOWN_IGNORED = Fault(
    id="req-unknown-ignored",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions", "responses"),
    rule="Parameters that are not known, and headers such as x-stainless-* and OpenAI-Beta, are ignored, not refused.",
    hurts=(
        "Codex: a 400 on tools that are no functions ended every turn",
        "CodeCompanion: a 400 on members of messages that the server did not know",
        "openai-python, openai-node: send x-stainless-* headers with every request",
    ),
    mend=Mend.PARTIAL,
    how="the client's headers do not go upstream; its fields do",
    by=Hearing.PROBE,
)
CONTENT_PARTS = Fault(
    id="req-content-parts",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="message.content is a string or a list of parts, and the role developer is the role system.",
    hurts=("AI SDK, Codex, opencode: send lists of parts or the role developer, and are refused",),
    mend=Mend.REPORT,
    how="report; messages are passed on as they came. For local models both forms count",
    by=Hearing.PROBE,
)
