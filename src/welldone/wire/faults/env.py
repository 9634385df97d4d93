"""Faults of the chunk envelope; each id begins with `env-`."""

from welldone.wire.faults.fault import Fault, Mend, Severity

OBJECT_CONST = Fault(
    id="env-object-const",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every chunk has object = chat.completion.chunk, the usage chunk too.",
    hurts=("openai-python .stream(): skips the chunk; if all are wrong, AssertionError and nothing is delivered",),
    mend=Mend.LOSSLESS,
    how="set it to chat.completion.chunk",
)
ID_PRESENT = Fault(
    id="env-id-present",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every chunk has a non-empty string id.",
    hurts=(
        "openai-node .stream(): ignores the chunk's other top-level fields, so usage is lost",
        "AI SDK openai-compatible, AI SDK openai: an integer id fails the validation of every chunk",
        "litellm: MidStreamFallbackError at an integer id",
        "async-openai: a chunk without a string id fails to parse",
        "openai-java: OpenAIInvalidDataException",
    ),
    mend=Mend.LOSSLESS,
    how="make one id per stream and set it",
)
ID_CONSTANT = Fault(
    id="env-id-constant",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The id is the same on all chunks of a reply.",
    hurts=("openai-go: the accumulator drops every chunk with another id",),
    mend=Mend.LOSSLESS,
    how="rewrite to the first id",
)
CREATED_INT = Fault(
    id="env-created-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="created is an integer count of seconds on every chunk.",
    hurts=(
        "AI SDK openai-compatible, AI SDK openai: a string fails the validation of every chunk",
        "go-openai: a float or a string fails to parse",
        "async-openai: milliseconds do not fit into its 32 bits, the chunk fails to parse",
        "openai-dotnet: throws on a float or null",
    ),
    mend=Mend.LOSSLESS,
    how="turn strings and floats into integers and milliseconds into seconds; fill in where it is missing",
)
CREATED_CONSTANT = Fault(
    id="env-created-constant",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="created is the same on all chunks.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="rewrite to the first value",
)
MODEL_STRING = Fault(
    id="env-model-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every chunk has a model string.",
    hurts=(
        "async-openai: a chunk without model fails to parse",
        "openai-java: OpenAIInvalidDataException (seen through Spring AI)",
    ),
    mend=Mend.LOSSLESS,
    how="fill in the model of the request",
)
CHOICES_ARRAY = Fault(
    id="env-choices-array",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="choices is always an array; never null or missing.",
    hurts=(
        "openai-python .stream(): TypeError \"'NoneType' object is not iterable\"",
        "openai-node .stream(): 'chunk.choices is not iterable'",
        "AI SDK openai-compatible, AI SDK openai: AI_TypeValidationError",
        "Zed, openai-dotnet: null fails to parse",
    ),
    mend=Mend.LOSSLESS,
    how="write []",
)
NO_ERROR_KEY = Fault(
    id="env-no-error-key",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Healthy chunks never carry an error key, not even null.",
    hurts=(
        "AI SDK openai-compatible: one error per chunk and no text",
        "openai-go: ends the stream with an error, since the key exists",
        "goose: ServerError, since the key exists",
    ),
    mend=Mend.LOSSLESS,
    how="delete the key when it is null or empty",
)
METADATA_ON_USAGE_CHUNK = Fault(
    id="env-metadata-on-usage-chunk",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The usage-only chunk carries id, object, created and model like the others.",
    hurts=(
        "openai-python .stream(): usage is lost",
        "openai-node .stream(): usage is lost",
        "openai-java: OpenAIInvalidDataException (seen through Spring AI)",
    ),
    mend=Mend.LOSSLESS,
    how="fill in the values of the other chunks",
)
FINGERPRINT = Fault(
    id="env-fingerprint",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="system_fingerprint is optional; if sent, send it on every chunk with one value.",
    hurts=("openai-python .stream(): keeps the last chunk's value, so one sent only at the start is lost",),
    mend=Mend.LOSSLESS,
    how="copy the first chunk's value to every chunk; drop one that comes later",
)
SERVICE_TIER = Fault(
    id="env-service-tier",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="service_tier, if sent, is null or a known value.",
    hurts=("async-openai: a value outside its enum fails to parse",),
    mend=Mend.REPORT,
    how="report and forward: providers have plans of their own",
)
EXTRA_FIELDS = Fault(
    id="env-extra-fields",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Extra top-level fields (timings, obfuscation, provider) are allowed but must not reuse protocol names.",
    hurts=("open-webui: acts on a top-level event key",),
    mend=Mend.REPORT,
    how="report and forward; a field that the upstream sends may be one that its clients read",
)
OBFUSCATION = Fault(
    id="env-obfuscation",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    rule=(
        "obfuscation is random padding: a server may omit it, a client must ignore it; "
        "include_obfuscation:false turns it off."
    ),
    hurts=(),
    mend=Mend.LOSSLESS,
    how="pass it on; strip it where the request turned it off",
)
PLACEHOLDER_CHUNK = Fault(
    id="env-placeholder-chunk",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="Only the usage chunk has choices []: no placeholder chunk comes first or between others.",
    hurts=(
        "AI SDK openai-compatible: the model id of the reply became '' (vercel/ai#20829)",
        "inference-benchmarker: reads choices[0] of every chunk and panics",
    ),
    mend=Mend.LOSSLESS,
    how="drop it; unknown fields ride on the next chunk",
)
