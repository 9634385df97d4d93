"""Faults of errors; each id begins with `err-`."""

from welldone.wire.faults.fault import EVERYWHERE, Fault, Hearing, Mend, Severity

STATUS_BEFORE_STREAM = Fault(
    id="err-status-before-stream",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="A failure known before the first token is a non-2xx status with a JSON body, not a 200 stream.",
    hurts=(
        "openai-python, openai-node: a JSON error body under 200 ends as an empty stream, without an error",
        "AI SDK openai, litellm: a JSON error body under 200 passes silently",
    ),
    mend=Mend.PARTIAL,
    how="wait for the first event: if it is an error and nothing was sent on, answer with a status",
)
REFUSED_4XX = Fault(
    id="err-refused-4xx",
    severity=Severity.TOLERATED,
    endpoints=EVERYWHERE,
    rule="A request that cannot be served gets a 4xx that says why, soon: never a 5xx, never silence.",
    hurts=(
        "openai-python, openai-node: try every 5xx again, twice, so that each mistake costs three requests",
        "openai-python: waits 600 s for a server that says nothing",
    ),
    mend=Mend.PARTIAL,
    how="check what a request must have; a 500 whose words blame the request becomes a 400, silence a 504",
    by=Hearing.PROBE,
)
BODY_SHAPE = Fault(
    id="err-body-shape",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions", "responses"),
    rule="The body is {error:{message,type,param,code}} with all four keys.",
    hurts=(
        "AI SDK openai-compatible, AI SDK openai: want error.message as a string, else the message is lost",
        "openai-python, openai-node: show the raw body instead of a message",
    ),
    mend=Mend.LOSSLESS,
    how="wrap it in that shape",
)
CODE_STRING = Fault(
    id="err-code-string",
    severity=Severity.STYLE,
    endpoints=("chat", "completions", "responses"),
    rule="error.code is a string or null.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="turn the number into a string",
)
MIDSTREAM_EVENT = Fault(
    id="err-midstream-event",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule=(
        'A failure after the first byte is one event, data: {"error":{...}}: error is the first key, no space '
        "after '{'."
    ),
    hurts=("go-openai, inference-benchmarker: know an error by its first bytes and miss any other form",),
    mend=Mend.LOSSLESS,
    how="build the object again in this order",
)
THEN_DONE = Fault(
    id="err-then-done",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="After the error event send [DONE], then end the body; no more chunks.",
    hurts=("org-ai: ends only at [DONE]",),
    mend=Mend.LOSSLESS,
    how="append [DONE] and drop what follows the error",
)
NOT_OBJECT_ERROR = Fault(
    id="err-not-object-error",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="An error event is never {object:'error',message:..} or a flat {message,code}.",
    hurts=(
        "openai-python: passes it on as a chunk without choices; the stream looks like a success",
        "LangChain, pydantic-ai, openai-node, litellm: take the stream for a success",
    ),
    mend=Mend.LOSSLESS,
    how="wrap it in error",
)
NOT_ERROR_FIELD = Fault(
    id="err-not-error-field",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="No line of the stream uses a field called error:.",
    hurts=("openai-python, openai-node, LangChain, AI SDK openai: ignore the field; the stream looks like a success",),
    mend=Mend.LOSSLESS,
    how="turn it into a data event",
)
NOT_CONTENT = Fault(
    id="err-not-content",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="An error is never written as assistant text with finish_reason stop.",
    hurts=("openai-python: hands the error over as the model's answer, as every client does",),
    mend=Mend.REPORT,
    how="report; the text can only be matched against known patterns",
)
NOT_SILENT = Fault(
    id="err-not-silent",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="A failed stream never ends with a bare [DONE] or EOF.",
    hurts=(
        "openai-python, openai-node, LangChain, pydantic-ai, litellm: take half an answer for a whole one",
        "AI SDK openai: takes half an answer for a whole one, finish reason 'other'",
    ),
    mend=Mend.LOSSLESS,
    how="send an error event; where [DONE] came, finish as fin-always-sent does",
)
NOT_WITH_CHOICES = Fault(
    id="err-not-with-choices",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="error and choices are never in one chunk.",
    hurts=("AI SDK openai: strips the unknown key and goes on; the error is lost",),
    mend=Mend.LOSSLESS,
    how="send the error alone",
)
EVENT_NAME = Fault(
    id="err-event-name",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="On chat and completions the error event has no event: name; a flat payload under event: error is lost.",
    hurts=(
        "go-openai: loses the details of the error",
        "openai-python, openai-node, LangChain: take a flat error under a name for a success",
    ),
    mend=Mend.LOSSLESS,
    how="strip the name and wrap a flat error",
)
RETRY_AFTER = Fault(
    id="err-retry-after",
    severity=Severity.STYLE,
    endpoints=EVERYWHERE,
    rule="429 and 503 carry Retry-After.",
    hurts=("openai-python, openai-node: guess how long to wait before they try again",),
    mend=Mend.REPORT,
    how="pass the header on; the right wait cannot be known",
)
EMPTY_STREAM = Fault(
    id="err-empty-stream",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="A 200 stream with no chunk at all (only [DONE], or nothing) is an error, not a reply.",
    hurts=(
        "openai-node .stream(): throws 'request ended without sending any chunks'",
        "LangChain: raises 'No generation chunks were returned'",
        "openai-python, openai-node, litellm: give an empty answer without an error",
    ),
    mend=Mend.LOSSLESS,
    how="send an error event",
)
