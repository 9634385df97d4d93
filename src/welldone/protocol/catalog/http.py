"""Rules about HTTP transport (`http-`)."""

from welldone.protocol.catalog.rule import ALL_ENDPOINTS, Detection, Repairability, Rule, Severity

CONTENT_TYPE = Rule(
    id="http-content-type",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="A streamed reply carries Content-Type text/event-stream (a charset parameter is fine).",
    affects=(
        "inference-benchmarker: refuses the reply and counts the request as failed",
        "aichat: refused a stream whose header a gateway had dropped",
        "open-webui: could not use a stream sent as application/x-ndjson",
    ),
    repairability=Repairability.LOSSLESS,
    repair="overwrite the header when the request asked for stream",
)
CHARSET_UTF8 = Rule(
    id="http-charset-utf8",
    severity=Severity.STYLE,
    endpoints=ALL_ENDPOINTS,
    summary="Bytes are UTF-8 whatever the charset parameter says; never declare another charset.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="rewrite the header",
)
FLUSH_EACH_EVENT = Rule(
    id="http-flush-each-event",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Every event is sent when it is made; events are not collected first.",
    affects=(
        "openai-python, openai-node: the whole answer comes at once, as does their callers' first text",
        "trustedrouter-provider-check: fails its check stream.incremental-delivery",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; what was held back upstream is late already. Nothing is added to the wait",
    detection=Detection.PROBE,
)
NO_PROXY_BUFFERING = Rule(
    id="http-no-proxy-buffering",
    severity=Severity.TOLERATED,
    endpoints=ALL_ENDPOINTS,
    summary="Send X-Accel-Buffering: no so nginx-type front ends do not hold the stream.",
    affects=("Pi coding agent: broke behind nginx, which held the stream back",),
    repairability=Repairability.LOSSLESS,
    repair="add the header",
)
CACHE_CONTROL = Rule(
    id="http-cache-control",
    severity=Severity.STYLE,
    endpoints=ALL_ENDPOINTS,
    summary="Send Cache-Control: no-cache (add no-transform) on streams.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="add the header",
)
NO_BUFFERING_COMPRESSION = Rule(
    id="http-no-buffering-compression",
    severity=Severity.TOLERATED,
    endpoints=ALL_ENDPOINTS,
    summary="Do not run the stream through a compressor that is not flushed per event.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="ask upstream for identity encoding, or decode and send on uncompressed",
)
CHUNKED_TERMINATED = Rule(
    id="http-chunked-terminated",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Use chunked (or h2) framing with no Content-Length and end the body properly with the zero chunk.",
    affects=(
        "openai-node: throws 'terminated', even when [DONE] has arrived",
        "AI SDK openai-compatible: throws 'Failed to process successful response', even after [DONE]",
        "httpx: raises RemoteProtocolError 'incomplete chunked read' if it reads to the end",
    ),
    repairability=Repairability.LOSSLESS,
    repair="end the own body cleanly; if upstream died before finish_reason, send an error event first",
)
BODY_ENDS_AFTER_DONE = Rule(
    id="http-body-ends-after-done",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    summary="Finish the response body right after [DONE]; never leave it open.",
    affects=(
        "openai-node: reads on after [DONE], hangs while the body is open, then throws 'terminated'",
        "AI SDK openai-compatible: skips [DONE], hangs while the body is open, then throws",
    ),
    repairability=Repairability.LOSSLESS,
    repair="close the own body at [DONE] or at the final event",
)
HEADERS_BEFORE_PREFILL = Rule(
    id="http-headers-before-prefill",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="Status and headers are sent when the request is accepted, before the prompt is processed.",
    affects=(
        "openai-node, AI SDK: their fetch gives up when no head came within 300 s",
        "Pi coding agent: timed out where only the head was late",
    ),
    repairability=Repairability.PARTIAL,
    repair="send the head after a second of waiting; a refusal that comes later is an error event",
    detection=Detection.PROBE,
)
CORS_PREFLIGHT = Rule(
    id="http-cors-preflight",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="OPTIONS is answered, and every header that is asked for is allowed, those named x-stainless-* too.",
    affects=("openai-node in a browser: no request leaves the page, and all that it shows is 'Connection error.'",),
    repairability=Repairability.LOSSLESS,
    repair="answer OPTIONS itself, for the origins that its owner allows",
    detection=Detection.PROBE,
)
ACCEPT_IGNORED = Rule(
    id="http-accept-ignored",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="The stream field of the body alone chooses between a stream and JSON; the Accept header does not.",
    affects=(
        "openai-python, openai-node: send Accept: application/json on streams too, and get no stream",
        "LangChain, pydantic-ai: the same, as they use openai-python",
    ),
    repairability=Repairability.LOSSLESS,
    repair="read the field alone; the client's Accept does not go upstream",
    detection=Detection.PROBE,
)
STREAM_DEFAULT_FALSE = Rule(
    id="http-stream-default-false",
    severity=Severity.BREAKS,
    endpoints=ALL_ENDPOINTS,
    summary="An absent or false stream means one JSON object, not a stream.",
    affects=("AI SDK: sends no stream key for a whole reply, and fails to read a stream as JSON",),
    repairability=Repairability.LOSSLESS,
    repair="always send `stream` to the upstream, and collect a stream into one object",
    detection=Detection.PROBE,
)
