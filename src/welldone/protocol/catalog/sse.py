"""Rules about SSE framing (`sse-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Detection, Repairability, Rule, Severity

EVENT_BLANK_LINE = Rule(
    id="sse-event-blank-line",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Each event ends with an empty line; one newline is not enough.",
    affects=(
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
    repairability=Repairability.LOSSLESS,
    repair="re-frame line by line",
)
ONE_OBJECT_PER_EVENT = Rule(
    id="sse-one-object-per-event",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="One event holds exactly one JSON object; two data: lines in one event are joined, not split.",
    affects=(
        "openai-python, LangChain: JSONDecodeError 'Extra data'",
        "openai-node: SyntaxError 'Unexpected non-whitespace character after JSON'",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError, the text of the event is lost",
        "pydantic-ai, litellm: the request fails with an API error",
    ),
    repairability=Repairability.LOSSLESS,
    repair="split on complete JSON values",
)
JSON_ON_ONE_LINE = Rule(
    id="sse-json-on-one-line",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Put the whole JSON on a single data: line (no pretty printing).",
    affects=(
        "go-openai, Zed, goose, gptel, org-ai, Continue, open-webui: read line by line and see broken JSON",
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: fail if a line lacks its data: prefix",
    ),
    repairability=Repairability.LOSSLESS,
    repair="parse the event and write it compactly on one line",
)
DATA_SPACE = Rule(
    id="sse-data-space",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Write 'data: ' with one space after the colon.",
    affects=(
        "org-ai: searches for 'data: ' with the space and finds nothing",
        "Clawith: skipped every chunk without the space",
    ),
    repairability=Repairability.LOSSLESS,
    repair="re-frame",
)
LF_ONLY = Rule(
    id="sse-lf-only",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Use LF line ends; CRLF and CR are legal but break LF-only readers.",
    affects=(
        "org-ai: compares the raw line with [DONE], so the CR hides the end",
        "OrcaRouter-Lite: gave an empty stream for CRLF from Azure",
        "openai-node: held events back on mixed line ends, before openai/openai-node#2309",
    ),
    repairability=Repairability.LOSSLESS,
    repair="re-frame",
)
NO_BOM = Rule(
    id="sse-no-bom",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="No byte-order mark at the start.",
    affects=("openai-python, openai-python .stream(), LangChain, pydantic-ai, litellm: the first event is lost",),
    repairability=Repairability.LOSSLESS,
    repair="drop its 3 bytes",
)
NO_ID_FIELD = Rule(
    id="sse-no-id-field",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Do not send id: fields.",
    affects=(
        "openai-python, LangChain: JSONDecodeError at the next comment or doubled blank line",
        "pydantic-ai: ModelAPIError at the next comment or doubled blank line",
        "litellm: MidStreamFallbackError at the next comment or doubled blank line",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop id: lines",
)
NO_RETRY_FRAME = Rule(
    id="sse-no-retry-frame",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Do not send stand-alone retry: frames.",
    affects=(
        "openai-python, openai-python .stream(), LangChain: JSONDecodeError at the retry: frame",
        "pydantic-ai: ModelAPIError at the retry: frame",
        "litellm: MidStreamFallbackError at the retry: frame",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop the frame",
)
NO_EMPTY_DATA = Rule(
    id="sse-no-empty-data",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Never dispatch an event without JSON data (event: ping with no data, or data: empty).",
    affects=(
        "openai-python, LangChain: JSONDecodeError 'Expecting value'",
        "openai-node: SyntaxError 'Unexpected end of JSON input'",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError if data is empty; a bare event name is ignored",
        "pydantic-ai, litellm: the request fails with an API error",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop the event",
)
NO_FOREIGN_JSON = Rule(
    id="sse-no-foreign-json",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Do not put non-chunk JSON (pings, vendor objects) in the chat stream.",
    affects=(
        "openai-node .stream(): 'chunk.choices is not iterable'",
        "AI SDK openai-compatible, AI SDK openai: AI_TypeValidationError",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop it",
)
NO_EVENT_NAME = Rule(
    id="sse-no-event-name",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    summary="Chat and completions events carry no event: line.",
    affects=(
        "go-openai: keeps the line in its error buffer, so a real error can no longer be parsed",
        "langchain4j: takes the event name 'error' as a failure",
    ),
    repairability=Repairability.LOSSLESS,
    repair="strip event: lines",
)
KEEPALIVE_FORM = Rule(
    id="sse-keepalive-form",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary=(
        "A keep-alive is a comment line starting with ':' or a chunk that changes nothing; never a data: "
        "line holding a comment."
    ),
    affects=(
        "openai-python, LangChain: JSONDecodeError at a comment inside data:",
        "openai-node: SyntaxError at a comment inside data:",
        "AI SDK openai-compatible, AI SDK openai: AI_JSONParseError at a comment inside data:",
        "pydantic-ai, litellm: the request fails with an API error",
    ),
    repairability=Repairability.LOSSLESS,
    repair="turn it into a real comment",
)
KEEPALIVE_RESETS_IDLE = Rule(
    id="sse-keepalive-resets-idle",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Where clients time out on events rather than bytes, a keep-alive is a chunk that changes nothing.",
    affects=("Codex: ends the turn after 300 s without an event; comments do not count",),
    repairability=Repairability.REPORT_ONLY,
    repair="none: a server cannot know the clock of its client, and comments suit all others",
    detection=Detection.PROBE,
)
KEEPALIVE_RUN_LIMIT = Rule(
    id="sse-keepalive-run-limit",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Keep runs of non-data lines short (under ~100 lines between data events).",
    affects=("go-openai: 'stream has sent too many empty messages' after 300 lines without data",),
    repairability=Repairability.LOSSLESS,
    repair="after 40 comments send one chunk that changes nothing",
)
WHOLE_EVENT_WRITES = Rule(
    id="sse-whole-event-writes",
    severity=Severity.TOLERATED,
    endpoints=ALL_ENDPOINTS,
    summary="Write each event in one piece; do not split in the middle of 'data:' by design.",
    affects=(
        "langchain (Elixir): hung on a split inside 'data:' (brainlid/langchain#156)",
        "ruby-openai: lost text when JSON was split over two reads (alexrudall/ruby-openai#335)",
    ),
    repairability=Repairability.LOSSLESS,
    repair="hold bytes until the event is whole, then write it in one piece",
)
