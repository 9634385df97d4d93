"""Faults of replies that are not streamed; each id begins with `ns-`."""

from welldone.wire.faults.fault import EVERYWHERE, Fault, Hearing, Mend, Severity

CONTENT_TYPE_JSON = Fault(
    id="ns-content-type-json",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="A JSON reply has Content-Type application/json.",
    hurts=("openai-node: hands back the body as a string, so choices is undefined",),
    mend=Mend.LOSSLESS,
    how="set the header",
)
NO_SSE_TAIL = Fault(
    id="ns-no-sse-tail",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Nothing follows the JSON object.",
    hurts=(
        "openai-python, LangChain: JSONDecodeError, extra data",
        "openai-node: SyntaxError from JSON.parse",
        "pydantic-ai: cannot decode the reply",
        "AI SDK openai-compatible, AI SDK openai: 'Invalid JSON response'",
    ),
    mend=Mend.LOSSLESS,
    how="cut what follows",
)
ROLE = Fault(
    id="ns-role",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="message.role is assistant.",
    hurts=(
        "LangChain: raises ValidationError",
        "pydantic-ai: rejects the reply",
    ),
    mend=Mend.LOSSLESS,
    how="write it",
)
CHOICES = Fault(
    id="ns-choices",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="choices is a non-empty array.",
    hurts=(
        "LangChain: IndexError for [], TypeError for null",
        "pydantic-ai: IndexError for [], rejects null",
        "AI SDK openai-compatible, AI SDK openai: throw 'Response did not contain any choices'",
    ),
    mend=Mend.REPORT,
    how="report; there is no answer to give",
)
FINISH = Fault(
    id="ns-finish",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="finish_reason is a non-null enum value.",
    hurts=(
        "openai-dotnet: throws on null",
        "AI SDK openai-compatible, AI SDK openai: the finish reason is 'other'",
    ),
    mend=Mend.PARTIAL,
    how="map words as fin-closed-enum does; null beside whole tool calls is tool_calls, else the reply is an error",
)
CONTENT_KEY = Fault(
    id="ns-content-key",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="message.content is present, string or null.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="write null",
)
USAGE = Fault(
    id="ns-usage",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="usage is present with its three integers.",
    hurts=(),
    mend=Mend.REPORT,
    how="report; the numbers cannot be known",
)
TOOL_CALLS = Fault(
    id="ns-tool-calls",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="tool_calls entries have id, type function, name and arguments as a string, and no index.",
    hurts=(
        "pydantic-ai: rejects the reply without id or type, or with arguments as an object",
        "AI SDK openai: rejects the reply without type, or with arguments as an object",
        "AI SDK openai-compatible: rejects the reply with arguments as an object",
        "LangChain: ValidationError when arguments is an object",
    ),
    mend=Mend.LOSSLESS,
    how="encode the arguments, fill in id and type, drop the index",
)
ERROR_STATUS = Fault(
    id="ns-error-status",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="An error is never a 200.",
    hurts=(
        "openai-python: returns an object whose choices is None",
        "openai-node: returns an object without choices",
    ),
    mend=Mend.LOSSLESS,
    how="set a 4xx or 5xx status by the code of the error",
)
OBJECT_SCHEMA = Fault(
    id="ns-object-schema",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="The reply and its choices have every required member of the published schema, each of its type.",
    hurts=(
        "clients generated from OpenAI's schema: reject a reply without id, created, model or index",
        "openai-python, openai-node: an attribute is None or undefined that their types promise",
    ),
    mend=Mend.LOSSLESS,
    how="fill in what is missing: the envelope of our own, and index by position",
)
OBJECT = Fault(
    id="ns-object",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="object is chat.completion (text_completion for completions).",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="set it",
)
LEADING_SPACE_OK = Fault(
    id="ns-leading-space-ok",
    severity=Severity.STYLE,
    endpoints=EVERYWHERE,
    rule="White space before the JSON, sent to keep the connection alive, is harmless.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="none is needed: it is skipped",
    by=Hearing.PROBE,
)
MODELS_LIST = Fault(
    id="ns-models-list",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions", "responses"),
    rule="GET /v1/models gives {object:'list',data:[{id,object:'model',created,owned_by}]}.",
    hurts=(
        "openai-python, openai-node: models.list() gives nothing where there is no data",
        "openai-php: fails on a model without owned_by",
        "BoltAI: finds no models where object is missing",
    ),
    mend=Mend.LOSSLESS,
    how="list the models itself, each with all four fields",
    by=Hearing.PROBE,
)
