"""Faults of usage; each id begins with `use-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

FINAL_CHUNK = Fault(
    id="use-final-chunk",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="With include_usage one extra chunk with choices [] and a usage object comes right before [DONE].",
    hurts=(
        "LangChain: asks for usage and has none to show",
        "AI SDK openai: asks for usage and reports it as unknown",
        "pydantic-ai: reports 0 tokens",
        "litellm: counts by itself and is off (10 instead of 8)",
    ),
    mend=Mend.PARTIAL,
    how="collect usage seen elsewhere in the stream; otherwise report (a tokenizer count is a guess)",
)
ONLY_IF_ASKED = Fault(
    id="use-only-if-asked",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Without include_usage no chunk with empty choices is sent.",
    hurts=("inference-benchmarker: reads choices[0] of every chunk and panics",),
    mend=Mend.LOSSLESS,
    how="drop it from the stream; the report keeps the numbers",
)
NULL_ELSEWHERE = Fault(
    id="use-null-elsewhere",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="With include_usage the other chunks have usage null (absent is tolerated), never numbers.",
    hurts=(
        "LangChain: adds up the usage of all chunks (40 tokens instead of 8 over five chunks)",
        "pydantic-ai: adds it up the same way unless openai_continuous_usage_stats is set",
        "Cline: counted 1.7 million tokens behind a relay that sent usage on every chunk",
    ),
    mend=Mend.LOSSLESS,
    how="write null on all chunks but the last usage",
)
NOT_ZERO = Fault(
    id="use-not-zero",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="Do not send placeholder zeros.",
    hurts=(
        "openai-python: reports 0 tokens, which looks like a real count",
        "litellm: takes the zeros and gives up its own estimate",
    ),
    mend=Mend.LOSSLESS,
    how="drop objects of zeros unless it is the last usage",
)
INTS = Fault(
    id="use-ints",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="prompt_tokens, completion_tokens, total_tokens are all present as integers.",
    hurts=(
        "AI SDK openai-compatible, AI SDK openai: reject the chunk when the numbers are strings",
        "LangChain: raises ValidationError on fractions",
        "litellm: ends the stream with an error on fractions",
        "async-openai: reads u32 and fails on anything else",
    ),
    mend=Mend.PARTIAL,
    how="turn numeric strings and whole floats into integers; compute a missing total",
)
TOTAL_SUM = Fault(
    id="use-total-sum",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="total_tokens = prompt_tokens + completion_tokens.",
    hurts=("webai-at-home: its test usage.total_is_sum fails",),
    mend=Mend.REPORT,
    how="report; the total is kept, unless it is smaller than one of the two",
)
LAST = Fault(
    id="use-last",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="No chunk follows the usage chunk except [DONE].",
    hurts=(
        "openai-python .stream(): takes usage from every chunk, so the next chunk resets it to None",
        "openai-node .stream(): loses usage that came on the first chunk only",
    ),
    mend=Mend.LOSSLESS,
    how="move usage to the end",
)
CHOICES_EMPTY_ARRAY = Fault(
    id="use-choices-empty-array",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The usage chunk's choices is [], not missing, null or a dummy choice.",
    hurts=(
        "openai-python .stream(): TypeError when choices is missing or null",
        "openai-node .stream(): throws 'chunk.choices is not iterable'",
        "AI SDK openai-compatible, AI SDK openai: reject the chunk and report an error",
    ),
    mend=Mend.LOSSLESS,
    how="write []",
)
WHOLE_REQUEST = Fault(
    id="use-whole-request",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="The numbers are those of the whole request, all n choices and reasoning included.",
    hurts=(),
    mend=Mend.PARTIAL,
    how="where choices are asked for one by one their counts are added up; otherwise report",
    by=Hearing.PROBE,
)
DETAILS = Fault(
    id="use-details",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    rule="prompt_tokens_details / completion_tokens_details are optional objects of integers (null tolerated).",
    hurts=("Codex: fails when a details object lacks its field (on Responses)",),
    mend=Mend.REPORT,
    how="report; all members are kept, and a count written as a string becomes an integer",
)
