"""Rules about errors (`err-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Detection, Repairability, Rule, Severity

STATUS_BEFORE_STREAM = Rule(
    id="err-status-before-stream",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="A failure known before the first token is a non-2xx status with a JSON body, not a 200 stream.",
    affects=(
        "openai-python, openai-node: a JSON error body under 200 ends as an empty stream, without an error",
        "AI SDK openai, litellm: a JSON error body under 200 passes silently",
    ),
    repairability=Repairability.PARTIAL,
    repair="wait for the first event: if it is an error and nothing was sent on, answer with a status",
)
REFUSED_4XX = Rule(
    id="err-refused-4xx",
    severity=Severity.TOLERATED,
    endpoints=ALL_ENDPOINTS,
    summary="A request that cannot be served gets a 4xx with the reason, soon: never a 5xx, never silence.",
    affects=(
        "openai-python, openai-node: try every 5xx again, twice, so that each mistake costs three requests",
        "openai-python: waits 600 s for a server that sends nothing",
    ),
    repairability=Repairability.PARTIAL,
    repair="check what a request must have; a 500 whose message blames the request becomes a 400, silence a 504",
    detection=Detection.PROBE,
)
BODY_SHAPE = Rule(
    id="err-body-shape",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions", "responses"),
    summary="The body is {error:{message,type,param,code}} with all four keys.",
    affects=(
        "AI SDK openai-compatible, AI SDK openai: want error.message as a string, else the message is lost",
        "openai-python, openai-node: show the raw body instead of a message",
    ),
    repairability=Repairability.LOSSLESS,
    repair="wrap it in that shape",
)
CODE_STRING = Rule(
    id="err-code-string",
    severity=Severity.STYLE,
    endpoints=("chat", "completions", "responses"),
    summary="error.code is a string or null.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="turn the number into a string",
)
MIDSTREAM_EVENT = Rule(
    id="err-midstream-event",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary=(
        'A failure after the first byte is one event, data: {"error":{...}}: error is the first key, no space '
        "after '{'."
    ),
    affects=("go-openai, inference-benchmarker: know an error by its first bytes and miss any other form",),
    repairability=Repairability.LOSSLESS,
    repair="build the object again in this order",
)
THEN_DONE = Rule(
    id="err-then-done",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="After the error event send [DONE], then end the body; no more chunks.",
    affects=("org-ai: ends only at [DONE]",),
    repairability=Repairability.LOSSLESS,
    repair="append [DONE] and drop what follows the error",
)
NOT_OBJECT_ERROR = Rule(
    id="err-not-object-error",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="An error event is never {object:'error',message:..} or a flat {message,code}.",
    affects=(
        "openai-python: passes it on as a chunk without choices; the stream looks like a success",
        "LangChain, pydantic-ai, openai-node, litellm: take the stream for a success",
    ),
    repairability=Repairability.LOSSLESS,
    repair="wrap it in error",
)
NOT_ERROR_FIELD = Rule(
    id="err-not-error-field",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="No line of the stream uses a field called error:.",
    affects=(
        "openai-python, openai-node, LangChain, AI SDK openai: ignore the field; the stream looks like a success",
    ),
    repairability=Repairability.LOSSLESS,
    repair="turn it into a data event",
)
NOT_CONTENT = Rule(
    id="err-not-content",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="An error is never written as assistant text with finish_reason stop.",
    affects=("openai-python: hands the error over as the model's answer, as every client does",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the text can only be matched against known patterns",
)
NOT_SILENT = Rule(
    id="err-not-silent",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="A failed stream never ends with a bare [DONE] or EOF.",
    affects=(
        "openai-python, openai-node, LangChain, pydantic-ai, litellm: take half an answer for a whole one",
        "AI SDK openai: takes half an answer for a whole one, finish reason 'other'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="send an error event; where [DONE] came, finish as fin-always-sent does",
)
NOT_WITH_CHOICES = Rule(
    id="err-not-with-choices",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="error and choices are never in one chunk.",
    affects=("AI SDK openai: strips the unknown key and goes on; the error is lost",),
    repairability=Repairability.LOSSLESS,
    repair="send the error alone",
)
EVENT_NAME = Rule(
    id="err-event-name",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="On chat and completions the error event has no event: name; a flat payload under event: error is lost.",
    affects=(
        "go-openai: loses the details of the error",
        "openai-python, openai-node, LangChain: take a flat error under a name for a success",
    ),
    repairability=Repairability.LOSSLESS,
    repair="strip the name and wrap a flat error",
)
RETRY_AFTER = Rule(
    id="err-retry-after",
    severity=Severity.STYLE,
    endpoints=ALL_ENDPOINTS,
    summary="429 and 503 carry Retry-After.",
    affects=("openai-python, openai-node: guess how long to wait before they try again",),
    repairability=Repairability.REPORT_ONLY,
    repair="pass the header on; the right wait cannot be known",
)
EMPTY_STREAM = Rule(
    id="err-empty-stream",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="A 200 stream with no chunk at all (only [DONE], or nothing) is an error, not a reply.",
    affects=(
        "openai-node .stream(): throws 'request ended without sending any chunks'",
        "LangChain: raises 'No generation chunks were returned'",
        "openai-python, openai-node, litellm: give an empty answer without an error",
    ),
    repairability=Repairability.LOSSLESS,
    repair="send an error event",
)
