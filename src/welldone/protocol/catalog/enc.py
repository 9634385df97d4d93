"""Rules about encoding and JSON (`enc-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Repairability, Rule, Severity

VALID_UTF8 = Rule(
    id="enc-valid-utf8",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="The stream is valid UTF-8 at all times; an unfinished code point is held back, not sent.",
    affects=(
        "openai-python, LangChain: UnicodeDecodeError",
        "pydantic-ai, litellm: the request fails with an API error",
        "openai-node, AI SDK openai-compatible, AI SDK openai: show U+FFFD in place of the character",
    ),
    repairability=Repairability.PARTIAL,
    repair="bytes split over two events can be re-joined if still raw; a U+FFFD already written cannot be recovered",
)
NO_REPLACEMENT_CHAR = Rule(
    id="enc-no-replacement-char",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary=(
        "A token that ends inside a character is merged with the next; U+FFFD never appears because of token borders."
    ),
    affects=("every client: shows U+FFFD where a character should be; it cannot be recovered",),
    repairability=Repairability.REPORT_ONLY,
    repair="lost upstream; report U+FFFD in deltas",
)
NO_LONE_SURROGATE = Rule(
    id="enc-no-lone-surrogate",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Never split a surrogate pair over two chunks as \\udXXX escapes.",
    affects=(
        "openai-python, LangChain, pydantic-ai, litellm: text with lone surrogates, encode() raises UnicodeEncodeError",
    ),
    repairability=Repairability.LOSSLESS,
    repair="hold the high half until the next delta of that choice",
)
STRICT_JSON = Rule(
    id="enc-strict-json",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary=(
        "Each event is one whole value of strict JSON: not truncated, no NaN, Infinity, single quotes or Python repr."
    ),
    affects=(
        "openai-node: SyntaxError at NaN or -Infinity",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError at NaN or -Infinity, the text of the chunk is lost",
        "openai-python, LangChain, pydantic-ai, litellm: accept NaN, but fail at single quotes or a Python repr",
    ),
    repairability=Repairability.LOSSLESS,
    repair="parse leniently, write null or -9999.0 for the numbers that JSON does not have",
)
ESCAPE_LINE_BREAKS = Rule(
    id="enc-escape-line-breaks",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Escape control characters, and also U+2028, U+2029, U+0085, inside strings.",
    affects=(
        "guidellm: cuts the line at a raw U+2028 or U+0085",
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: JSON error at a raw line break",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write the JSON again with escapes",
)
