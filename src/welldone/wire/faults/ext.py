"""Faults of reasoning, refusal, logprobs and extras; each id begins with `ext-`."""

from welldone.wire.faults.fault import Fault, Mend, Severity

REASONING_FIELD = Fault(
    id="ext-reasoning-field",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Reasoning text goes in delta.reasoning_content, which most clients know, and in no other field beside it.",
    hurts=(
        "goose, langchain4j, org-ai, go-ai-sdk: know only reasoning_content",
        "Zed: shows both fields when both are sent, so the text is doubled",
    ),
    mend=Mend.LOSSLESS,
    how="rename it to reasoning_content",
)
NO_THINK_TAGS = Fault(
    id="ext-no-think-tags",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="If reasoning has its own field, content does not begin with <think>…</think>.",
    hurts=("pydantic-ai: takes the tags out itself and makes a second thinking part",),
    mend=Mend.REPORT,
    how='report; with `think = "tags"` for the upstream (`fix --think tags`) a leading <think>…</think> is reasoning',
)
REASONING_BEFORE_CONTENT = Fault(
    id="ext-reasoning-before-content",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Reasoning deltas come before content of the same turn.",
    hurts=("gptel, org-ai: switch from reasoning to answer once",),
    mend=Mend.REPORT,
    how="report; the order is part of the meaning",
)
REFUSAL = Fault(
    id="ext-refusal",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="A refusal streams in delta.refusal (string or null), not in content.",
    hurts=(),
    mend=Mend.REPORT,
    how="report; what was meant cannot be known",
)
LOGPROBS_SHAPE = Fault(
    id="ext-logprobs-shape",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="choice.logprobs is null or {content:[..]|null, refusal:[..]|null}.",
    hurts=(
        "openai-python .stream(): AttributeError when logprobs is a list",
        "AI SDK openai: drops the chunk and its text when logprobs is a list",
    ),
    mend=Mend.LOSSLESS,
    how="write null when malformed; add a missing key",
)
LOGPROBS_ENTRY = Fault(
    id="ext-logprobs-entry",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Each entry has token, logprob, bytes (null allowed) and top_logprobs (maybe []).",
    hurts=("AI SDK openai: drops the chunk and its text without bytes and top_logprobs",),
    mend=Mend.LOSSLESS,
    how="add bytes (the UTF-8 of the token) and top_logprobs []",
)
LOGPROBS_FINITE = Fault(
    id="ext-logprobs-finite",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Log probabilities are finite; use -9999.0 for 'very unlikely'.",
    hurts=(
        "openai-node: JSON.parse throws and the stream ends",
        "AI SDK openai-compatible, AI SDK openai: lose the chunk and its text",
    ),
    mend=Mend.LOSSLESS,
    how="write -9999.0",
)
LOGPROBS_ALIGN = Fault(
    id="ext-logprobs-align",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="A chunk's logprob entries are the tokens of that chunk; over the stream no token is missing or doubled.",
    hurts=("AI SDK openai, pydantic-ai: join the entries of all chunks, which then do not match the text",),
    mend=Mend.REPORT,
    how="report when the joined bytes differ from the joined content",
)
LIST_FIELDS_INDEXED = Fault(
    id="ext-list-fields-indexed",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Extra list-of-object fields in delta (annotations, reasoning_details) appear once, or carry index.",
    hurts=("openai-python .stream(): RuntimeError 'Expected list delta entry to have an `index` key'",),
    mend=Mend.LOSSLESS,
    how="add an index to the entries of later chunks",
)
NUMBER_FIELDS = Fault(
    id="ext-number-fields",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="A delta holds no numbers of its own: openai-python adds them up over the chunks.",
    hurts=("openai-python .stream(): adds the numbers of all chunks up",),
    mend=Mend.REPORT,
    how="report and forward; elsewhere the upstream's clients would not find it",
)
ANNOTATIONS = Fault(
    id="ext-annotations",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Annotations are url_citation objects with all four fields: url, title, start_index and end_index.",
    hurts=("AI SDK openai: rejects a chunk with any other kind of annotation",),
    mend=Mend.REPORT,
    how="report; the missing values cannot be known",
)
AUDIO = Fault(
    id="ext-audio",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Audio deltas carry id, base64 data, transcript, and end with expires_at.",
    hurts=("openai-node .stream(): takes the audio for incomplete",),
    mend=Mend.REPORT,
    how="report; the missing values cannot be known",
)
