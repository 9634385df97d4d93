"""Faults of SSE framing; each id begins with `sse-`."""

from welldone.wire.faults.fault import EVERYWHERE, Fault, Hearing, Mend, Severity

EVENT_BLANK_LINE = Fault(
    id="sse-event-blank-line",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Each event ends with an empty line; one newline is not enough.",
    hurts=(
        "openai-python: gives an empty answer and no error",
        "openai-python .stream(): AssertionError",
        "openai-node: gives an empty answer and no error",
        "openai-node .stream(): 'request ended without sending any chunks'",
        "AI SDK openai-compatible: no text, 'Response stream ended without a finish reason.'",
        "AI SDK openai: gives an empty answer with finish 'other'",
        "LangChain: ValueError 'No generation chunks were returned'",
        "pydantic-ai: 'Streamed response ended without content or tool calls'",
        "litellm: gives an empty answer and no error",
    ),
    mend=Mend.LOSSLESS,
    how="re-frame line by line",
)
ONE_OBJECT_PER_EVENT = Fault(
    id="sse-one-object-per-event",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="One event holds exactly one JSON object; two data: lines in one event are joined, not split.",
    hurts=(
        "openai-python, LangChain: JSONDecodeError 'Extra data'",
        "openai-node: SyntaxError 'Unexpected non-whitespace character after JSON'",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError, the text of the event is lost",
        "pydantic-ai, litellm: the request fails with an API error",
    ),
    mend=Mend.LOSSLESS,
    how="split on complete JSON values",
)
JSON_ON_ONE_LINE = Fault(
    id="sse-json-on-one-line",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Put the whole JSON on a single data: line (no pretty printing).",
    hurts=(
        "go-openai, Zed, goose, gptel, org-ai, Continue, open-webui: read line by line and see broken JSON",
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: fail if a line lacks its data: prefix",
    ),
    mend=Mend.LOSSLESS,
    how="parse the event and write it compactly on one line",
)
DATA_SPACE = Fault(
    id="sse-data-space",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Write 'data: ' with one space after the colon.",
    hurts=(
        "org-ai: searches for 'data: ' with the space and finds nothing",
        "Clawith: skipped every chunk without the space",
    ),
    mend=Mend.LOSSLESS,
    how="re-frame",
)
LF_ONLY = Fault(
    id="sse-lf-only",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Use LF line ends; CRLF and CR are legal but break LF-only readers.",
    hurts=(
        "org-ai: compares the raw line with [DONE], so the CR hides the end",
        "OrcaRouter-Lite: gave an empty stream for CRLF from Azure",
        "openai-node: held events back on mixed line ends, before openai/openai-node#2309",
    ),
    mend=Mend.LOSSLESS,
    how="re-frame",
)
NO_BOM = Fault(
    id="sse-no-bom",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="No byte-order mark at the start.",
    hurts=("openai-python, openai-python .stream(), LangChain, pydantic-ai, litellm: the first event is lost",),
    mend=Mend.LOSSLESS,
    how="drop its 3 bytes",
)
NO_ID_FIELD = Fault(
    id="sse-no-id-field",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Do not send id: fields.",
    hurts=(
        "openai-python, LangChain: JSONDecodeError at the next comment or doubled blank line",
        "pydantic-ai: ModelAPIError at the next comment or doubled blank line",
        "litellm: MidStreamFallbackError at the next comment or doubled blank line",
    ),
    mend=Mend.LOSSLESS,
    how="drop id: lines",
)
NO_RETRY_FRAME = Fault(
    id="sse-no-retry-frame",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Do not send stand-alone retry: frames.",
    hurts=(
        "openai-python, openai-python .stream(), LangChain: JSONDecodeError at the retry: frame",
        "pydantic-ai: ModelAPIError at the retry: frame",
        "litellm: MidStreamFallbackError at the retry: frame",
    ),
    mend=Mend.LOSSLESS,
    how="drop the frame",
)
NO_EMPTY_DATA = Fault(
    id="sse-no-empty-data",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Never dispatch an event without JSON data (event: ping with no data, or data: empty).",
    hurts=(
        "openai-python, LangChain: JSONDecodeError 'Expecting value'",
        "openai-node: SyntaxError 'Unexpected end of JSON input'",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError if data is empty; a bare event name is ignored",
        "pydantic-ai, litellm: the request fails with an API error",
    ),
    mend=Mend.LOSSLESS,
    how="drop the event",
)
NO_FOREIGN_JSON = Fault(
    id="sse-no-foreign-json",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Do not put non-chunk JSON (pings, vendor objects) in the chat stream.",
    hurts=(
        "openai-node .stream(): 'chunk.choices is not iterable'",
        "AI SDK openai-compatible, AI SDK openai: AI_TypeValidationError",
    ),
    mend=Mend.LOSSLESS,
    how="drop it",
)
NO_EVENT_NAME = Fault(
    id="sse-no-event-name",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="Chat and completions events carry no event: line.",
    hurts=(
        "go-openai: keeps the line in its error buffer, so a real error can no longer be parsed",
        "langchain4j: takes the event name 'error' as a failure",
    ),
    mend=Mend.LOSSLESS,
    how="strip event: lines",
)
KEEPALIVE_FORM = Fault(
    id="sse-keepalive-form",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule=(
        "A keep-alive is a comment line starting with ':' or a chunk that changes nothing; never a data: "
        "line holding a comment."
    ),
    hurts=(
        "openai-python, LangChain: JSONDecodeError at a comment inside data:",
        "openai-node: SyntaxError at a comment inside data:",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError at a comment inside data:",
        "pydantic-ai, litellm: the request fails with an API error",
    ),
    mend=Mend.LOSSLESS,
    how="turn it into a real comment",
)
KEEPALIVE_RESETS_IDLE = Fault(
    id="sse-keepalive-resets-idle",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Where clients time out on events rather than bytes, a keep-alive is a chunk that changes nothing.",
    hurts=("Codex: ends the turn after 300 s without an event; comments do not count",),
    mend=Mend.REPORT,
    how="none: a server cannot know the clock of its client, and comments suit all others",
    by=Hearing.PROBE,
)
KEEPALIVE_RUN_LIMIT = Fault(
    id="sse-keepalive-run-limit",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Keep runs of non-data lines short (under ~100 lines between data events).",
    hurts=("go-openai: 'stream has sent too many empty messages' after 300 lines without data",),
    mend=Mend.LOSSLESS,
    how="after 40 comments send one chunk that changes nothing",
)
WHOLE_EVENT_WRITES = Fault(
    id="sse-whole-event-writes",
    severity=Severity.TOLERATED,
    endpoints=EVERYWHERE,
    rule="Write each event in one piece; do not split in the middle of 'data:' by design.",
    hurts=(
        "langchain (Elixir): hung on a split inside 'data:' (brainlid/langchain#156)",
        "ruby-openai: lost text when JSON was split over two reads (alexrudall/ruby-openai#335)",
    ),
    mend=Mend.LOSSLESS,
    how="hold bytes until the event is whole, then write it in one piece",
)
