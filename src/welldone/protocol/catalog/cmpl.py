"""Rules about /v1/completions (`cmpl-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

TEXT_STRING = Rule(
    id="cmpl-text-string",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    summary="choices[].text is a string in every chunk, '' on the last.",
    affects=(
        "AI SDK openai-compatible, AI SDK openai: reject the chunk and finish with 'error'",
        "openai-node: hands on undefined, which is joined as text",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write ''",
)
NO_DELTA = Rule(
    id="cmpl-no-delta",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    summary="There is no delta here: the chat shape is not understood.",
    affects=(
        "openai-python, LangChain: give an empty text",
        "openai-node: gives undefined as text",
        "AI SDK openai-compatible, AI SDK openai: reject every chunk",
    ),
    repairability=Repairability.LOSSLESS,
    repair="move delta.content to text",
)
OBJECT = Rule(
    id="cmpl-object",
    severity=Severity.STYLE,
    endpoints=("completions",),
    summary="object is text_completion in chunks too.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="set it to text_completion",
)
INDEX = Rule(
    id="cmpl-index",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    summary="choices[].index is an integer, and there are no more choices than were requested.",
    affects=("AI SDK openai-compatible, AI SDK openai: reject every chunk",),
    repairability=Repairability.LOSSLESS,
    repair="write 0; drop choices beyond those requested",
)
FINISH = Rule(
    id="cmpl-finish",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    summary="finish_reason is null, then stop, length or content_filter.",
    affects=("generated clients: fail on a value outside the enum",),
    repairability=Repairability.LOSSLESS,
    repair="write null until the end; map values as fin-closed-enum does, or end with an error event",
)
LOGPROBS = Rule(
    id="cmpl-logprobs",
    severity=Severity.TOLERATED,
    endpoints=("completions",),
    summary="logprobs is null or {tokens, token_logprobs, top_logprobs, text_offset} of equal lengths.",
    affects=("evaluation harnesses: find no token_logprobs to add up",),
    repairability=Repairability.PARTIAL,
    repair="write null when it is empty; turn the shape of chat into lists; otherwise report",
)
DONE = Rule(
    id="cmpl-done",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    summary="The stream ends with data: [DONE].",
    affects=("org-ai, inference-benchmarker: end only at [DONE]",),
    repairability=Repairability.LOSSLESS,
    repair="append it",
)
USAGE_CHUNK = Rule(
    id="cmpl-usage-chunk",
    severity=Severity.TOLERATED,
    endpoints=("completions",),
    summary="With include_usage the last chunk has choices [] and usage.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="as for use-final-chunk: collect the usage that was sent elsewhere",
)
ECHO = Rule(
    id="cmpl-echo",
    severity=Severity.STYLE,
    endpoints=("completions",),
    summary="With echo the prompt comes first as text, and text_offset counts from its start.",
    affects=("lm-evaluation-harness: without the prompt's logprobs each answer scores the same",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the field is passed on, and the upstream answers for it",
    detection=Detection.PROBE,
)
BATCH_INDEX = Rule(
    id="cmpl-batch-index",
    severity=Severity.STYLE,
    endpoints=("completions",),
    summary="With a list of prompts the index is prompt number * n + choice.",
    affects=(),
    repairability=Repairability.PARTIAL,
    repair="ask once for each prompt, and number the choices, unless the upstream is known to take lists",
    detection=Detection.PROBE,
)
ID_CONSTANT = Rule(
    id="cmpl-id-constant",
    severity=Severity.STYLE,
    endpoints=("completions",),
    summary="All chunks have one id, which begins with cmpl-.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="rewrite it to one id that begins with cmpl-",
)
SUFFIX = Rule(
    id="cmpl-suffix",
    severity=Severity.STYLE,
    endpoints=("completions",),
    summary="suffix is followed, or refused with 400; it is not ignored.",
    affects=(),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the field is passed on, and the upstream answers for it",
    detection=Detection.PROBE,
)
