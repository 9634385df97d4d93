"""Rules about usage (`use-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

FINAL_CHUNK = Rule(
    id="use-final-chunk",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="With include_usage one extra chunk with choices [] and a usage object comes right before [DONE].",
    affects=(
        "LangChain: asks for usage and has none to show",
        "AI SDK openai: asks for usage and reports it as unknown",
        "pydantic-ai: reports 0 tokens",
        "litellm: counts by itself and is off (10 instead of 8)",
    ),
    repairability=Repairability.PARTIAL,
    repair="collect usage seen elsewhere in the stream; otherwise report (a tokenizer count is a guess)",
)
ONLY_IF_ASKED = Rule(
    id="use-only-if-asked",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Without include_usage no chunk with empty choices is sent.",
    affects=("inference-benchmarker: reads choices[0] of every chunk and panics",),
    repairability=Repairability.LOSSLESS,
    repair="drop it from the stream; the report keeps the numbers",
)
NULL_ELSEWHERE = Rule(
    id="use-null-elsewhere",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="With include_usage the other chunks have usage null (absent is tolerated), never numbers.",
    affects=(
        "LangChain: adds up the usage of all chunks (40 tokens instead of 8 over five chunks)",
        "pydantic-ai: adds it up the same way unless openai_continuous_usage_stats is set",
        "Cline: counted 1.7 million tokens behind a relay that sent usage on every chunk",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write null on all chunks but the last usage",
)
NOT_ZERO = Rule(
    id="use-not-zero",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="Do not send placeholder zeros.",
    affects=(
        "openai-python: reports 0 tokens, which looks like a real count",
        "litellm: takes the zeros and gives up its own estimate",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop objects of zeros unless it is the last usage",
)
INTS = Rule(
    id="use-ints",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="prompt_tokens, completion_tokens, total_tokens are all present as integers.",
    affects=(
        "AI SDK openai-compatible, AI SDK openai: reject the chunk when the numbers are strings",
        "LangChain: raises ValidationError on fractions",
        "litellm: ends the stream with an error on fractions",
        "async-openai: reads u32 and fails on anything else",
    ),
    repairability=Repairability.PARTIAL,
    repair="turn numeric strings and whole floats into integers; compute a missing total",
)
TOTAL_SUM = Rule(
    id="use-total-sum",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="total_tokens = prompt_tokens + completion_tokens.",
    affects=("webai-at-home: its test usage.total_is_sum fails",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the total is kept, unless it is smaller than one of the two",
)
LAST = Rule(
    id="use-last",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="No chunk follows the usage chunk except [DONE].",
    affects=(
        "openai-python .stream(): takes usage from every chunk, so the next chunk resets it to None",
        "openai-node .stream(): loses usage that came on the first chunk only",
    ),
    repairability=Repairability.LOSSLESS,
    repair="move usage to the end",
)
CHOICES_EMPTY_ARRAY = Rule(
    id="use-choices-empty-array",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The usage chunk's choices is [], not missing, null or a dummy choice.",
    affects=(
        "openai-python .stream(): TypeError when choices is missing or null",
        "openai-node .stream(): throws 'chunk.choices is not iterable'",
        "AI SDK openai-compatible, AI SDK openai: reject the chunk and report an error",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write []",
)
WHOLE_REQUEST = Rule(
    id="use-whole-request",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="The numbers are those of the whole request, all n choices and reasoning included.",
    affects=(),
    repairability=Repairability.PARTIAL,
    repair="where choices are asked for one by one their counts are added up; otherwise report",
    detection=Detection.PROBE,
)
DETAILS = Rule(
    id="use-details",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    summary="prompt_tokens_details / completion_tokens_details are optional objects of integers (null tolerated).",
    affects=("Codex: fails when a details object lacks its field (on Responses)",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; all members are kept, and a count written as a string becomes an integer",
)
