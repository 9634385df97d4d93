"""Faults of HTTP transport; each id begins with `http-`."""

from welldone.wire.faults.fault import EVERYWHERE, Fault, Hearing, Mend, Severity

CONTENT_TYPE = Fault(
    id="http-content-type",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="A streamed reply carries Content-Type text/event-stream (a charset parameter is fine).",
    hurts=(
        "inference-benchmarker: refuses the reply and counts the request as failed",
        "aichat: refused a stream whose header a gateway had dropped",
        "open-webui: could not use a stream sent as application/x-ndjson",
    ),
    mend=Mend.LOSSLESS,
    how="overwrite the header when the request asked for stream",
)
CHARSET_UTF8 = Fault(
    id="http-charset-utf8",
    severity=Severity.STYLE,
    endpoints=EVERYWHERE,
    rule="Bytes are UTF-8 whatever the charset parameter says; never declare another charset.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="rewrite the header",
)
FLUSH_EACH_EVENT = Fault(
    id="http-flush-each-event",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Every event is sent when it is made; events are not collected first.",
    hurts=(
        "openai-python, openai-node: the whole answer comes at once, as does their callers' first text",
        "trustedrouter-provider-check: fails its check stream.incremental-delivery",
    ),
    mend=Mend.REPORT,
    how="report; what was held back upstream is late already. Nothing is added to the wait",
    by=Hearing.PROBE,
)
NO_PROXY_BUFFERING = Fault(
    id="http-no-proxy-buffering",
    severity=Severity.TOLERATED,
    endpoints=EVERYWHERE,
    rule="Send X-Accel-Buffering: no so nginx-type front ends do not hold the stream.",
    hurts=("Pi coding agent: broke behind nginx, which held the stream back",),
    mend=Mend.LOSSLESS,
    how="add the header",
)
CACHE_CONTROL = Fault(
    id="http-cache-control",
    severity=Severity.STYLE,
    endpoints=EVERYWHERE,
    rule="Send Cache-Control: no-cache (add no-transform) on streams.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="add the header",
)
NO_BUFFERING_COMPRESSION = Fault(
    id="http-no-buffering-compression",
    severity=Severity.TOLERATED,
    endpoints=EVERYWHERE,
    rule="Do not run the stream through a compressor that is not flushed per event.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="ask upstream for identity encoding, or decode and send on uncompressed",
)
CHUNKED_TERMINATED = Fault(
    id="http-chunked-terminated",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Use chunked (or h2) framing with no Content-Length and end the body properly with the zero chunk.",
    hurts=(
        "openai-node: throws 'terminated', even when [DONE] has arrived",
        "AI SDK openai-compatible: throws 'Failed to process successful response', even after [DONE]",
        "httpx: raises RemoteProtocolError 'incomplete chunked read' if it reads to the end",
    ),
    mend=Mend.LOSSLESS,
    how="end the own body cleanly; if upstream died before finish_reason, send an error event first",
)
BODY_ENDS_AFTER_DONE = Fault(
    id="http-body-ends-after-done",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
    rule="Finish the response body right after [DONE]; never leave it open.",
    hurts=(
        "openai-node: reads on after [DONE], hangs while the body is open, then throws 'terminated'",
        "AI SDK openai-compatible: skips [DONE], hangs while the body is open, then throws",
    ),
    mend=Mend.LOSSLESS,
    how="close the own body at [DONE] or at the final event",
)
HEADERS_BEFORE_PREFILL = Fault(
    id="http-headers-before-prefill",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="Status and headers are sent when the request is accepted, before the prompt is processed.",
    hurts=(
        "openai-node, AI SDK: their fetch gives up when no head came within 300 s",
        "Pi coding agent: timed out where only the head was late",
    ),
    mend=Mend.PARTIAL,
    how="send the head after a second of waiting; a refusal that comes later is an error event",
    by=Hearing.PROBE,
)
CORS_PREFLIGHT = Fault(
    id="http-cors-preflight",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="OPTIONS is answered, and every header that is asked for is allowed, those named x-stainless-* too.",
    hurts=("openai-node in a browser: no request leaves the page, and all that it shows is 'Connection error.'",),
    mend=Mend.LOSSLESS,
    how="answer OPTIONS itself, for the origins that its owner allows",
    by=Hearing.PROBE,
)
ACCEPT_IGNORED = Fault(
    id="http-accept-ignored",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="The stream field of the body alone chooses between a stream and JSON; the Accept header does not.",
    hurts=(
        "openai-python, openai-node: send Accept: application/json on streams too, and get no stream",
        "LangChain, pydantic-ai: the same, as they use openai-python",
    ),
    mend=Mend.LOSSLESS,
    how="read the field alone; the client's Accept does not go upstream",
    by=Hearing.PROBE,
)
STREAM_DEFAULT_FALSE = Fault(
    id="http-stream-default-false",
    severity=Severity.BREAKS,
    endpoints=EVERYWHERE,
    rule="An absent or false stream means one JSON object, not a stream.",
    hurts=("AI SDK: sends no stream key for a whole reply, and fails to read a stream as JSON",),
    mend=Mend.LOSSLESS,
    how="always say upstream what is wanted, and fold a stream into one object",
    by=Hearing.PROBE,
)
