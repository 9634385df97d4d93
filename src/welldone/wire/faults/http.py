"""Faults of HTTP transport; each id begins with `http-`."""

from welldone.wire.faults.fault import Fault, Mend, Severity

CONTENT_TYPE = Fault(
    id="http-content-type",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
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
    endpoints=("chat", "completions"),
    rule="Bytes are UTF-8 whatever the charset parameter says; never declare another charset.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="rewrite the header",
)
NO_PROXY_BUFFERING = Fault(
    id="http-no-proxy-buffering",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="Send X-Accel-Buffering: no so nginx-type front ends do not hold the stream.",
    hurts=("Pi coding agent: broke behind nginx, which held the stream back",),
    mend=Mend.LOSSLESS,
    how="add the header",
)
CACHE_CONTROL = Fault(
    id="http-cache-control",
    severity=Severity.STYLE,
    endpoints=("chat", "completions"),
    rule="Send Cache-Control: no-cache (add no-transform) on streams.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="add the header",
)
NO_BUFFERING_COMPRESSION = Fault(
    id="http-no-buffering-compression",
    severity=Severity.TOLERATED,
    endpoints=("chat", "completions"),
    rule="Do not run the stream through a compressor that is not flushed per event.",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="ask upstream for identity encoding, or decode and send on uncompressed",
)
CHUNKED_TERMINATED = Fault(
    id="http-chunked-terminated",
    severity=Severity.BREAKS,
    endpoints=("chat", "completions"),
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
