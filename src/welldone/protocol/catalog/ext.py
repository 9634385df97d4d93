"""Rules about reasoning, refusal, logprobs and extensions (`ext-`)."""

from welldone.protocol.catalog.rule import Repairability, Rule, Severity

REASONING_FIELD = Rule(
    id="ext-reasoning-field",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Reasoning text goes in delta.reasoning_content, which most clients know, and in no other field beside it.",
    affects=(
        "goose, langchain4j, org-ai, go-ai-sdk: know only reasoning_content",
        "Zed: shows both fields when both are sent, so the text is doubled",
    ),
    repairability=Repairability.LOSSLESS,
    repair="rename it to reasoning_content",
)
NO_THINK_TAGS = Rule(
    id="ext-no-think-tags",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="If reasoning has its own field, content does not begin with <think>…</think>.",
    affects=("pydantic-ai: takes the tags out itself and makes a second thinking part",),
    repairability=Repairability.REPORT_ONLY,
    repair=(
        'report; with `think = "tags"` for the upstream (`fix --think tags`) a leading <think>…</think> is reasoning'
    ),
)
REASONING_BEFORE_CONTENT = Rule(
    id="ext-reasoning-before-content",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Reasoning deltas come before content of the same turn.",
    affects=("gptel, org-ai: switch from reasoning to answer once",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the order is part of the meaning",
)
REFUSAL = Rule(
    id="ext-refusal",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="A refusal streams in delta.refusal (string or null), not in content.",
    affects=(),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the intended value cannot be known",
)
LOGPROBS_SHAPE = Rule(
    id="ext-logprobs-shape",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="choice.logprobs is null or {content:[..]|null, refusal:[..]|null}.",
    affects=(
        "openai-python .stream(): AttributeError when logprobs is a list",
        "AI SDK openai: drops the chunk and its text when logprobs is a list",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write null when malformed; add a missing key",
)
LOGPROBS_ENTRY = Rule(
    id="ext-logprobs-entry",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Each entry has token, logprob, bytes (null allowed) and top_logprobs (maybe []).",
    affects=("AI SDK openai: drops the chunk and its text without bytes and top_logprobs",),
    repairability=Repairability.LOSSLESS,
    repair="add bytes (the UTF-8 of the token) and top_logprobs []",
)
LOGPROBS_FINITE = Rule(
    id="ext-logprobs-finite",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Log probabilities are finite; use -9999.0 for 'very unlikely'.",
    affects=(
        "openai-node: JSON.parse throws and the stream ends",
        "AI SDK openai-compatible, AI SDK openai: lose the chunk and its text",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write -9999.0",
)
LOGPROBS_ALIGN = Rule(
    id="ext-logprobs-align",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="A chunk's logprob entries are the tokens of that chunk; over the stream no token is missing or doubled.",
    affects=("AI SDK openai, pydantic-ai: join the entries of all chunks, which then do not match the text",),
    repairability=Repairability.REPORT_ONLY,
    repair="report when the joined bytes differ from the joined content",
)
LIST_FIELDS_INDEXED = Rule(
    id="ext-list-fields-indexed",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Extra list-of-object fields in delta (annotations, reasoning_details) appear once, or carry index.",
    affects=("openai-python .stream(): RuntimeError 'Expected list delta entry to have an `index` key'",),
    repairability=Repairability.LOSSLESS,
    repair="add an index to the entries of later chunks",
)
NUMBER_FIELDS = Rule(
    id="ext-number-fields",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="A delta holds no numbers of its own: openai-python adds them up over the chunks.",
    affects=("openai-python .stream(): adds the numbers of all chunks up",),
    repairability=Repairability.REPORT_ONLY,
    repair="report and forward; elsewhere the upstream's clients would not find it",
)
ANNOTATIONS = Rule(
    id="ext-annotations",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Annotations are url_citation objects with all four fields: url, title, start_index and end_index.",
    affects=("AI SDK openai: rejects a chunk with any other kind of annotation",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the missing values cannot be known",
)
AUDIO = Rule(
    id="ext-audio",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Audio deltas carry id, base64 data, transcript, and end with expires_at.",
    affects=("openai-node .stream(): takes the audio for incomplete",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the missing values cannot be known",
)
