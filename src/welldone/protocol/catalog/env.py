"""Rules about the chunk envelope (`env-`)."""

from welldone.protocol.catalog.rule import Repairability, Rule, Severity

OBJECT_CONST = Rule(
    id="env-object-const",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Every chunk has object = chat.completion.chunk, the usage chunk too.",
    affects=("openai-python .stream(): skips the chunk; if all are wrong, AssertionError and nothing is delivered",),
    repairability=Repairability.LOSSLESS,
    repair="set it to chat.completion.chunk",
)
ID_PRESENT = Rule(
    id="env-id-present",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Every chunk has a non-empty string id.",
    affects=(
        "openai-node .stream(): ignores the chunk's other top-level fields, so usage is lost",
        "AI SDK openai-compatible, AI SDK openai: an integer id fails the validation of every chunk",
        "litellm: MidStreamFallbackError at an integer id",
        "async-openai: a chunk without a string id fails to parse",
        "openai-java: OpenAIInvalidDataException",
    ),
    repairability=Repairability.LOSSLESS,
    repair="make one id per stream and set it",
)
ID_CONSTANT = Rule(
    id="env-id-constant",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The id is the same on all chunks of a reply.",
    affects=("openai-go: the accumulator drops every chunk with another id",),
    repairability=Repairability.LOSSLESS,
    repair="rewrite to the first id",
)
CREATED_INT = Rule(
    id="env-created-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="created is an integer count of seconds on every chunk.",
    affects=(
        "AI SDK openai-compatible, AI SDK openai: a string fails the validation of every chunk",
        "go-openai: a float or a string fails to parse",
        "async-openai: milliseconds do not fit into its 32 bits, the chunk fails to parse",
        "openai-dotnet: throws on a float or null",
    ),
    repairability=Repairability.LOSSLESS,
    repair="turn strings and floats into integers and milliseconds into seconds; fill in where it is missing",
)
CREATED_CONSTANT = Rule(
    id="env-created-constant",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="created is the same on all chunks.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="rewrite to the first value",
)
MODEL_STRING = Rule(
    id="env-model-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Every chunk has a model string.",
    affects=(
        "async-openai: a chunk without model fails to parse",
        "openai-java: OpenAIInvalidDataException (seen through Spring AI)",
    ),
    repairability=Repairability.LOSSLESS,
    repair="fill in the model of the request",
)
CHOICES_ARRAY = Rule(
    id="env-choices-array",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="choices is always an array; never null or missing.",
    affects=(
        "openai-python .stream(): TypeError \"'NoneType' object is not iterable\"",
        "openai-node .stream(): 'chunk.choices is not iterable'",
        "AI SDK openai-compatible, AI SDK openai: AI_TypeValidationError",
        "Zed, openai-dotnet: null fails to parse",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write []",
)
NO_ERROR_KEY = Rule(
    id="env-no-error-key",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Healthy chunks never carry an error key, not even null.",
    affects=(
        "AI SDK openai-compatible: one error per chunk and no text",
        "openai-go: ends the stream with an error, since the key exists",
        "goose: ServerError, since the key exists",
    ),
    repairability=Repairability.LOSSLESS,
    repair="delete the key when it is null or empty",
)
METADATA_ON_USAGE_CHUNK = Rule(
    id="env-metadata-on-usage-chunk",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The usage-only chunk carries id, object, created and model like the others.",
    affects=(
        "openai-python .stream(): usage is lost",
        "openai-node .stream(): usage is lost",
        "openai-java: OpenAIInvalidDataException (seen through Spring AI)",
    ),
    repairability=Repairability.LOSSLESS,
    repair="fill in the values of the other chunks",
)
FINGERPRINT = Rule(
    id="env-fingerprint",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="system_fingerprint is optional; if sent, send it on every chunk with one value.",
    affects=("openai-python .stream(): keeps the last chunk's value, so one sent only at the start is lost",),
    repairability=Repairability.LOSSLESS,
    repair="copy the first chunk's value to every chunk; drop one that comes later",
)
SERVICE_TIER = Rule(
    id="env-service-tier",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="service_tier, if sent, is null or a known value.",
    affects=("async-openai: a value outside its enum fails to parse",),
    repairability=Repairability.REPORT_ONLY,
    repair="report and forward: providers have plans of their own",
)
EXTRA_FIELDS = Rule(
    id="env-extra-fields",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Extra top-level fields (timings, obfuscation, provider) are allowed but must not reuse protocol names.",
    affects=("open-webui: acts on a top-level event key",),
    repairability=Repairability.REPORT_ONLY,
    repair="report and forward; a field that the upstream sends may be one that its clients read",
)
OBFUSCATION = Rule(
    id="env-obfuscation",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    summary=(
        "obfuscation is random padding: a server may omit it, a client must ignore it; "
        "include_obfuscation:false turns it off."
    ),
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="pass it on; strip it where the request turned it off",
)
PLACEHOLDER_CHUNK = Rule(
    id="env-placeholder-chunk",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="Only the usage chunk has choices []: no placeholder chunk comes first or between others.",
    affects=(
        "AI SDK openai-compatible: the model id of the reply became '' (vercel/ai#20829)",
        "inference-benchmarker: reads choices[0] of every chunk and panics",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop it; attach its unknown fields to the next chunk",
)
