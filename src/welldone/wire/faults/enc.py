"""Faults of encoding and JSON; each id begins with `enc-`."""

from welldone.wire.faults.fault import EVERYWHERE, Fault, Mend, Severity

VALID_UTF8 = Fault(
    id="enc-valid-utf8",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="The stream is valid UTF-8 at all times; an unfinished code point is held back, not sent.",
    hurts=(
        "openai-python, LangChain: UnicodeDecodeError",
        "pydantic-ai, litellm: the request fails with an API error",
        "openai-node, AI SDK openai-compatible, AI SDK openai: show U+FFFD in place of the character",
    ),
    mend=Mend.PARTIAL,
    how="bytes split over two events can be re-joined if still raw; a U+FFFD already written cannot be recovered",
)
NO_REPLACEMENT_CHAR = Fault(
    id="enc-no-replacement-char",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="A token that ends inside a character is merged with the next; U+FFFD never appears because of token borders.",
    hurts=("every client: shows U+FFFD where a character should be; it cannot be recovered",),
    mend=Mend.REPORT,
    how="lost upstream; report U+FFFD in deltas",
)
NO_LONE_SURROGATE = Fault(
    id="enc-no-lone-surrogate",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Never split a surrogate pair over two chunks as \\udXXX escapes.",
    hurts=(
        "openai-python, LangChain, pydantic-ai, litellm: text with lone surrogates, encode() raises UnicodeEncodeError",
    ),
    mend=Mend.LOSSLESS,
    how="hold the high half until the next delta of that choice",
)
STRICT_JSON = Fault(
    id="enc-strict-json",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Each event is one whole value of strict JSON: not truncated, no NaN, Infinity, single quotes or Python repr.",
    hurts=(
        "openai-node: SyntaxError at NaN or -Infinity",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError at NaN or -Infinity, the text of the chunk is lost",
        "openai-python, LangChain, pydantic-ai, litellm: accept NaN, but fail at single quotes or a Python repr",
    ),
    mend=Mend.LOSSLESS,
    how="parse leniently, write null or -9999.0 for the numbers that JSON does not have",
)
ESCAPE_LINE_BREAKS = Fault(
    id="enc-escape-line-breaks",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Escape control characters, and also U+2028, U+2029, U+0085, inside strings.",
    hurts=(
        "guidellm: cuts the line at a raw U+2028 or U+0085",
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: JSON error at a raw line break",
    ),
    mend=Mend.LOSSLESS,
    how="write the JSON again with escapes",
)
