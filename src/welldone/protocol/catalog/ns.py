"""Rules about non-streamed replies (`ns-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Detection, Repairability, Rule, Severity

CONTENT_TYPE_JSON = Rule(
    id="ns-content-type-json",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="A JSON reply has Content-Type application/json.",
    affects=("openai-node: hands back the body as a string, so choices is undefined",),
    repairability=Repairability.LOSSLESS,
    repair="set the header",
)
NO_SSE_TAIL = Rule(
    id="ns-no-sse-tail",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Nothing follows the JSON object.",
    affects=(
        "openai-python, LangChain: JSONDecodeError, extra data",
        "openai-node: SyntaxError from JSON.parse",
        "pydantic-ai: cannot decode the reply",
        "AI SDK openai-compatible, AI SDK openai: 'Invalid JSON response'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="cut what follows",
)
ROLE = Rule(
    id="ns-role",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="message.role is assistant.",
    affects=(
        "LangChain: raises ValidationError",
        "pydantic-ai: rejects the reply",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it",
)
CHOICES = Rule(
    id="ns-choices",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="choices is a non-empty array.",
    affects=(
        "LangChain: IndexError for [], TypeError for null",
        "pydantic-ai: IndexError for [], rejects null",
        "AI SDK openai-compatible, AI SDK openai: throw 'Response did not contain any choices'",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; there is no answer to give",
)
FINISH = Rule(
    id="ns-finish",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="finish_reason is a non-null enum value.",
    affects=(
        "openai-dotnet: throws on null",
        "AI SDK openai-compatible, AI SDK openai: the finish reason is 'other'",
    ),
    repairability=Repairability.PARTIAL,
    repair=(
        "map reasons as fin-closed-enum does; null beside whole tool calls is tool_calls, else the reply is an error"
    ),
)
CONTENT_KEY = Rule(
    id="ns-content-key",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="message.content is present, string or null.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="write null",
)
USAGE = Rule(
    id="ns-usage",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="usage is present with its three integers.",
    affects=(),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the numbers cannot be known",
)
TOOL_CALLS = Rule(
    id="ns-tool-calls",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="tool_calls entries have id, type function, name and arguments as a string, and no index.",
    affects=(
        "pydantic-ai: rejects the reply without id or type, or with arguments as an object",
        "AI SDK openai: rejects the reply without type, or with arguments as an object",
        "AI SDK openai-compatible: rejects the reply with arguments as an object",
        "LangChain: ValidationError when arguments is an object",
    ),
    repairability=Repairability.LOSSLESS,
    repair="encode the arguments, fill in id and type, drop the index",
)
ERROR_STATUS = Rule(
    id="ns-error-status",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="An error is never a 200.",
    affects=(
        "openai-python: returns an object whose choices is None",
        "openai-node: returns an object without choices",
    ),
    repairability=Repairability.LOSSLESS,
    repair="set a 4xx or 5xx status by the code of the error",
)
OBJECT_SCHEMA = Rule(
    id="ns-object-schema",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="The reply and its choices have every required member of the published schema, each of its type.",
    affects=(
        "clients generated from OpenAI's schema: reject a reply without id, created, model or index",
        "openai-python, openai-node: an attribute is None or undefined that their types promise",
    ),
    repairability=Repairability.LOSSLESS,
    repair="fill in what is missing: the envelope of our own, and index by position",
)
OBJECT = Rule(
    id="ns-object",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="object is chat.completion (text_completion for completions).",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="set it",
)
LEADING_SPACE_OK = Rule(
    id="ns-leading-space-ok",
    severity=Severity.STYLE,
    endpoints=ALL_ENDPOINTS,
    summary="White space before the JSON, sent to keep the connection alive, is harmless.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="none is needed: it is skipped",
    detection=Detection.PROBE,
)
MODELS_LIST = Rule(
    id="ns-models-list",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions", "responses"),
    summary="GET /v1/models gives {object:'list',data:[{id,object:'model',created,owned_by}]}.",
    affects=(
        "openai-python, openai-node: models.list() gives nothing where there is no data",
        "openai-php: fails on a model without owned_by",
        "BoltAI: finds no models where object is missing",
    ),
    repairability=Repairability.LOSSLESS,
    repair="list the models itself, each with all four fields",
    detection=Detection.PROBE,
)
