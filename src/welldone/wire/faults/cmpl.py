"""Faults of /v1/completions; each id begins with `cmpl-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

TEXT_STRING = Fault(
    id="cmpl-text-string",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    rule="choices[].text is a string in every chunk, '' on the last.",
    hurts=(
        "AI SDK openai-compatible, AI SDK openai: reject the chunk and finish with 'error'",
        "openai-node: hands on undefined, which is joined as text",
    ),
    mend=Mend.LOSSLESS,
    how="write ''",
)
NO_DELTA = Fault(
    id="cmpl-no-delta",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    rule="There is no delta here: the chat shape is not understood.",
    hurts=(
        "openai-python, LangChain: give an empty text",
        "openai-node: gives undefined as text",
        "AI SDK openai-compatible, AI SDK openai: reject every chunk",
    ),
    mend=Mend.LOSSLESS,
    how="move delta.content to text",
)
OBJECT = Fault(
    id="cmpl-object",
    severity=Severity.STYLE,
    endpoints=("completions",),
    rule="object is text_completion in chunks too.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="set it to text_completion",
)
INDEX = Fault(
    id="cmpl-index",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    rule="choices[].index is an integer, and there are no more choices than were requested.",
    hurts=("AI SDK openai-compatible, AI SDK openai: reject every chunk",),
    mend=Mend.LOSSLESS,
    how="write 0; drop choices beyond those requested",
)
FINISH = Fault(
    id="cmpl-finish",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    rule="finish_reason is null, then stop, length or content_filter.",
    hurts=("generated clients: fail on a value outside the enum",),
    mend=Mend.LOSSLESS,
    how="write null until the end; map values as fin-closed-enum does, or end with an error event",
)
LOGPROBS = Fault(
    id="cmpl-logprobs",
    severity=Severity.TOLERATED,
    endpoints=("completions",),
    rule="logprobs is null or {tokens, token_logprobs, top_logprobs, text_offset} of equal lengths.",
    hurts=("evaluation harnesses: find no token_logprobs to add up",),
    mend=Mend.PARTIAL,
    how="write null when it is empty; turn the shape of chat into lists; otherwise report",
)
DONE = Fault(
    id="cmpl-done",
    severity=Severity.BREAKS,
    endpoints=("completions",),
    rule="The stream ends with data: [DONE].",
    hurts=("org-ai, inference-benchmarker: end only at [DONE]",),
    mend=Mend.LOSSLESS,
    how="append it",
)
USAGE_CHUNK = Fault(
    id="cmpl-usage-chunk",
    severity=Severity.TOLERATED,
    endpoints=("completions",),
    rule="With include_usage the last chunk has choices [] and usage.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="as for use-final-chunk: collect the usage that was sent elsewhere",
)
ECHO = Fault(
    id="cmpl-echo",
    severity=Severity.STYLE,
    endpoints=("completions",),
    rule="With echo the prompt comes first as text, and text_offset counts from its start.",
    hurts=("lm-evaluation-harness: without the prompt's logprobs each answer scores the same",),
    mend=Mend.REPORT,
    how="report; the field is passed on, and the upstream answers for it",
    by=Hearing.PROBE,
)
BATCH_INDEX = Fault(
    id="cmpl-batch-index",
    severity=Severity.STYLE,
    endpoints=("completions",),
    rule="With a list of prompts the index is prompt number * n + choice.",
    hurts=(),
    mend=Mend.PARTIAL,
    how="ask once for each prompt, and number the choices, unless the upstream is known to take lists",
    by=Hearing.PROBE,
)
ID_CONSTANT = Fault(
    id="cmpl-id-constant",
    severity=Severity.STYLE,
    endpoints=("completions",),
    rule="All chunks have one id, which begins with cmpl-.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="rewrite it to one id that begins with cmpl-",
)
SUFFIX = Fault(
    id="cmpl-suffix",
    severity=Severity.STYLE,
    endpoints=("completions",),
    rule="suffix is followed, or refused with 400; it is not ignored.",
    hurts=(),
    mend=Mend.REPORT,
    how="report; the field is passed on, and the upstream answers for it",
    by=Hearing.PROBE,
)
