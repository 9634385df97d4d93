"""The page at `/`: what this is, and where to go on. It says nothing of the models: it is open to all."""

from welldone.net.inbound import Reply
from welldone.serve.app import Ask

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FRONT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>welldone</title>
<h1>welldone</h1>
<p>This is an OpenAI-compatible server. Point a client's base URL at <code>/v1</code> here.</p>
<ul>
<li><code>POST /v1/chat/completions</code>, <code>/v1/completions</code>, <code>/v1/embeddings</code>,
<code>/v1/rerank</code>, <code>/tokenize</code>, <code>/detokenize</code>
<li><code>GET <a href="/v1/models">/v1/models</a></code>, <code><a href="/health">/health</a></code>,
<code><a href="/metrics">/metrics</a></code>
</ul>
</html>
"""


async def front(ask: Ask) -> Reply:
    """The first page."""
    return Reply(200, _FRONT, "text/html; charset=utf-8", dict(_HEADERS))
