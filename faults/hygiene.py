"""Ambiguous HTTP: whatever two servers could parse differently is rejected."""

import re
from typing import NamedTuple

from faults.case import Case, CaseContext, Figure, Outcome
from tests.support.faults import send_raw, split_replies
from tests.support.raw import CHAT, fetch
from tests.support.server import KEY, Running
from tests.support.upstream import gateway, upstream

HOST = "Host: localhost"
BEARER = f"Authorization: Bearer {KEY}"
MARK = b"smuggled"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n%b\r\nx-request-id: %b\r\n\r\n" % (BEARER.encode(), MARK)
"""Smuggled request in place of a body. A server that answers it echoes its id and is detected."""
CLOSE = "Connection: close"
CHUNKED = "Transfer-Encoding: chunked"
NO = (400,)
LONG = (400, 413, 414, 431)
SIZES = (9_000, 8 * 2**20)
"""Sizes above the limits: slightly more than 8 KB, which most servers accept, and the limit of another server."""
EXPECTED = ("200-ok", "100-continue", "100-continue, 100-continue", "")
UPGRADE = "Connection: upgrade, close"
UPGRADES = ("h2c", "websocket", "TLS/1.0", "smuggling")
PIPELINED = 100


class RawRequest(NamedTuple):
    """Bytes for a connection, and the accepted statuses."""

    name: str
    payload: bytes
    right: tuple[int, ...] = NO


def lines(first: str, *more: str, host: str | None = HOST) -> bytes:
    """Encode the head of a request verbatim."""
    named = [] if host is None else [host]
    return "\r\n".join([first, *named, *more, "", ""]).encode("latin-1")


def framed(name: str, *headers: str, body: bytes = b"", right: tuple[int, ...] = NO) -> RawRequest:
    """Build a POST with these headers and a smuggled request after its body."""
    return RawRequest(name, lines(f"POST {CHAT} HTTP/1.1", BEARER, *headers) + body + HIDDEN, right)


def lengths() -> list[RawRequest]:
    """Invalid and conflicting lengths. A lenient server reads the smuggled request."""
    size = len(HIDDEN)
    odd = ["+0", "-0", "-1", "0x0", "0_0", "0 0", "0, 1", "0,", ",0", "0;", "0.0", "1e1", "zero", "\xb2", f"{2**64}"]
    odd += ["9" * 400, '"0"', "0\x0b", "\x000"]
    return [
        *(framed(f"Content-Length: {value[:24]!r}", f"Content-Length: {value}") for value in odd),
        framed("two lengths", "Content-Length: 0", f"Content-Length: {size}"),
        framed("two lengths, the other way round", f"Content-Length: {size}", "Content-Length: 0"),
        framed("the same length twice", f"Content-Length: {size}", f"Content-Length: {size}"),
        framed("an empty length", "Content-Length:"),
        framed("a length and chunks", f"Content-Length: {size + 5}", CHUNKED, body=b"0\r\n\r\n"),
        framed("chunks and a length", CHUNKED, f"Content-Length: {size + 5}", body=b"0\r\n\r\n"),
        framed("a length in a folded line", f"Content-Length:\r\n {size}"),
        framed("a length after a bare LF", f"X: y\nContent-Length: {size}"),
        framed("a length after a bare CR", f"X: y\rContent-Length: {size}"),
        framed("a blank before the colon", f"Content-Length : {size}"),
    ]


def codings() -> list[RawRequest]:
    """Spellings of `chunked` that servers interpret differently."""
    end = b"0\r\n\r\n"
    odd = ["chunked, identity", "identity, chunked", "identity", "xchunked", "chunkedx", "chunk ed", "chunked, chunked"]
    odd += ["gzip, chunked", "chunked;q=1", '"chunked"', "chunked,", "\x0bchunked", "chunked\x0b", "", "\x00chunked"]
    size = f"Content-Length: {len(HIDDEN) + len(end)}"
    return [
        *(
            framed(f"Transfer-Encoding: {one!r}", f"Transfer-Encoding: {one}", body=end, right=(400, 501))
            for one in odd
        ),
        *(
            framed(f"{one!r} and a length", size, f"Transfer-Encoding: {one}", body=end, right=(400, 501))
            for one in odd
        ),
        framed("two codings", CHUNKED, "Transfer-Encoding: identity", body=end, right=(400, 501)),
        framed("chunked twice", CHUNKED, CHUNKED, body=end, right=(400, 501)),
        framed("a folded coding", "Transfer-Encoding:\r\n chunked", body=end),
        framed("a coding, a blank, a colon", "Transfer-Encoding : chunked", body=end),
        framed("a coding after a bare LF", f"X: y\n{CHUNKED}", body=end),
        framed("a coding after a bare CR", f"X: y\r{CHUNKED}", body=end),
        framed("Transfer_Encoding, which is no coding", size, "Transfer_Encoding: chunked", CLOSE, body=end),
        RawRequest("chunks in HTTP/1.0", lines(f"POST {CHAT} HTTP/1.0", BEARER, CHUNKED) + end + HIDDEN),
    ]


def chunks() -> list[RawRequest]:
    """Invalid chunk sizes, extensions and trailers."""
    odd = [b"-1", b"+0", b"0x0", b" 0", b"\t0", b"0_0", b"g", b"", b"0\x0b", b"1" + b"0" * 16, b"f" * 17, b"0\x00"]
    left = b"2\r\n{}\r\n"
    secret = BEARER.encode() + b"\r\n"
    return [
        *(framed(f"a chunk of {size[:20]!r} bytes", CHUNKED, body=size + b"\r\n\r\n") for size in odd),
        framed("a chunk that is longer than it says", CHUNKED, body=b"1\r\n{}\r\n0\r\n\r\n"),
        framed("a chunk without its end", CHUNKED, body=b"2\r\n{}0\r\n\r\n"),
        framed("a size that ends with LF", CHUNKED, body=b"2\n{}\r\n0\r\n\r\n"),
        framed("a size that ends with CR", CHUNKED, body=b"2\r{}\r\n0\r\n\r\n"),
        framed("a chunk that ends with LF", CHUNKED, body=b"2\r\n{}\n0\r\n\r\n"),
        framed("an LF within an extension", CHUNKED, body=b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
        framed("an extension of 1 MB", CHUNKED, CLOSE, body=b"2;" + b"x" * 2**20 + b"\r\n{}\r\n0\r\n\r\n"),
        RawRequest(
            "an extension without an end",
            lines(f"POST {CHAT} HTTP/1.1", BEARER, CHUNKED) + b"2;" + b"x" * 2**20,
            (400, 408),
        ),
        framed("10,000 trailers", CHUNKED, body=left + b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", right=LONG),
        framed("a trailer of 1 MB", CHUNKED, body=left + b"0\r\nX: " + b"y" * 2**20 + b"\r\n\r\n", right=LONG),
        RawRequest(
            "a key in a trailer",
            lines(f"POST {CHAT} HTTP/1.1", CHUNKED, CLOSE) + left + b"0\r\n" + secret + b"\r\n",
            (401,),
        ),
    ]


def heads() -> list[RawRequest]:
    """Invalid or oversized heads."""
    odd = {
        "a bare CR": "X: a\rb",
        "a NUL": "X: a\x00b",
        "a NUL in a name": "X\x00: y",
        "an empty name": ": y",
        "a blank in a name": "X Y: z",
        "a blank before the colon": "X : y",
        "a bracket in a name": "X(y): z",
        "a byte in a name that is no ASCII": "X\xe9: y",
        "a line without a colon": "X",
        "a folded line": "X: y\r\n z",
        "a second Host": "Host: localhost",
        "a second, foreign Host": "Host: evil.example",
    }
    get = "GET /v1/models HTTP/1.1"
    return [
        *(RawRequest(name, lines(get, BEARER, line) + HIDDEN) for name, line in odd.items()),
        RawRequest("a blank before the first header", lines(get, BEARER, host=" Host: localhost") + HIDDEN),
        RawRequest("lines that end with LF", lines(get, BEARER, CLOSE).replace(b"\r\n", b"\n") + HIDDEN),
        RawRequest("no Host", lines(get, BEARER, CLOSE, host=None)),
        RawRequest("an empty Host", lines(get, BEARER, CLOSE, host="Host:")),
        RawRequest("two names in Host", lines(get, BEARER, CLOSE, host="Host: localhost, evil.example")),
        RawRequest("a Host with a path", lines(get, BEARER, CLOSE, host="Host: localhost/../x")),
        RawRequest("x_api_key is no key", lines(get, f"x_api_key: {KEY}", CLOSE), (401,)),
        RawRequest("host_ is no Host", lines(get, BEARER, CLOSE, host="Ho_st: localhost")),
        RawRequest("10,000 headers", lines(get, *["X: y"] * 10_000) + HIDDEN, LONG),
        *(RawRequest(f"a header of {size:,} bytes", lines(get, f"X: {'y' * size}") + HIDDEN, LONG) for size in SIZES),
        *(RawRequest(f"a name of {size:,} bytes", lines(get, f"{'x' * size}: y") + HIDDEN, LONG) for size in SIZES),
        *(
            RawRequest(f"a path of {size:,} bytes", lines(f"GET /{'x' * size} HTTP/1.1") + HIDDEN, LONG)
            for size in SIZES
        ),
        *(
            RawRequest(f"a method of {size:,} bytes", lines(f"{'X' * size} / HTTP/1.1") + HIDDEN, LONG)
            for size in SIZES
        ),
        *(RawRequest(f"Expect: {what}", lines(get, BEARER, CLOSE, f"Expect: {what}"), (200, 417)) for what in EXPECTED),
        *(
            RawRequest(f"Upgrade: {what}", lines(get, BEARER, f"Upgrade: {what}", UPGRADE), (200, 400))
            for what in UPGRADES
        ),
        RawRequest(
            "a request in the body of one that is refused",
            lines(f"POST {CHAT} HTTP/1.1", CLOSE, f"Content-Length: {len(HIDDEN)}") + HIDDEN,
            (401,),
        ),
        RawRequest(
            "a GET with a body", lines(get, BEARER, CLOSE, f"Content-Length: {len(HIDDEN)}") + HIDDEN, (200, 400)
        ),
    ]


def first_lines() -> list[RawRequest]:
    """Invalid request lines and unknown targets."""
    odd = ["GET  /health HTTP/1.1", "GET\t/health\tHTTP/1.1", "GET /health HTTP/1.1 ", "GET /health HTTP/1.1 x", "GET"]
    odd += ["GET /health http/1.1", "GET /health HTTP/1", "GET /health HTTP/9.9", "GET /health HTTP/2.0", "GET /health"]
    odd += ["GET /a b HTTP/1.1", "GET health HTTP/1.1", "GET HTTP/1.1", "G@T /health HTTP/1.1", " GET /health HTTP/1.1"]
    odd += ["GET /health HTTP/11", "GET /\x00 HTTP/1.1", "GET /\r HTTP/1.1", "GET \\health HTTP/1.1", "get / HTTP/1.1"]
    odd += ["GET ftp://localhost/health HTTP/1.1", "GET //[ HTTP/1.1", "GET http:// HTTP/1.1", "GET http://[ HTTP/1.1"]
    foreign = ["GET http://evil.example/v1/models HTTP/1.1", "GET https://user@localhost/v1/models HTTP/1.1"]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 507
    return [
        *(RawRequest(repr(line), lines(line, BEARER, CLOSE) + HIDDEN, (400, 405)) for line in odd),
        *(RawRequest(line, lines(line, BEARER, CLOSE), (400, 403, 404, 421)) for line in foreign),
        RawRequest("an own address as a whole", lines("GET http://localhost/health HTTP/1.1", CLOSE), (200,)),
        RawRequest("CONNECT", lines("CONNECT evil.example:443 HTTP/1.1", BEARER) + HIDDEN, (400, 404, 405, 501)),
        RawRequest("OPTIONS *", lines("OPTIONS * HTTP/1.1", BEARER, CLOSE), (200, 204, 400, 404, 405)),
        RawRequest("TRACE", lines("TRACE /health HTTP/1.1", BEARER, CLOSE), (405,)),
        RawRequest("an unknown method", lines("FOO /health HTTP/1.1", BEARER, CLOSE), (400, 405)),
        RawRequest("HTTP/0.9", b"GET /health\r\n\r\n", (400,)),
        RawRequest("the preface of HTTP/2", preface, (400, 405)),
        RawRequest("the hello of TLS", hello, (400,)),
        RawRequest("garbage", b"\xff\xfe\x00garbage\r\n\r\n", (400,)),
    ]


def paths() -> list[RawRequest]:
    """Unusual paths with a valid key: none is an alias of another path."""
    odd = ["/%00", "/health%00", "/%", "/%zz", "/%ff", "/%c0%ae%c0%ae/health", "/\xc3\xa9", "/../health", "/./health"]
    odd += ["//health", "/health/", "/HEALTH", "/health;x", "/%2e%2e/health", "/v1/../metrics", "/v1//models", "/v1/v1"]
    odd += [
        "/health%2f..%2fmetrics",
        "/page/assets/../api/state",
        "/page/assets/%2e%2e/%2e%2e/x",
        "/\\health",
        "/%0d%0a",
    ]
    return [RawRequest(f"the path {one}", lines(f"GET {one} HTTP/1.1", BEARER, CLOSE), (400, 404)) for one in odd]


def pipelined() -> bytes:
    """Pipelined requests on one connection; the replies echo their ids."""
    requests = [["GET /health HTTP/1.1", f"x-request-id: pipe-{number}"] for number in range(PIPELINED)]
    requests[-1].append(CLOSE)
    return b"".join(lines(*one) for one in requests)


def hygiene(context: CaseContext) -> Outcome:
    """Send all of them to a gateway, one after the other."""
    sayings = [*lengths(), *codings(), *chunks(), *heads(), *first_lines(), *paths()]
    smuggled = failed = 0
    problems: list[str] = []
    with upstream() as one, gateway(context.folder, one.url, options=["--body-time", "1"]) as server:
        for raw_request in context.each(sayings):
            received = send_raw(server, raw_request.payload)
            statuses = [int(reply.split(b" ", 2)[1]) for reply in split_replies(received)]
            smuggled += MARK in received
            failed += any(status >= 500 for status in statuses)
            if len(statuses) != 1 or statuses[0] not in raw_request.right:
                problems.append(f"{raw_request.name}: {statuses}, not one of {raw_request.right}")
            elif not is_hung_up(received):
                problems.append(f"{raw_request.name}: {statuses}, and the connection goes on")
            elif statuses[0] >= 400 and b'{"error":{"message":"' not in received:
                problems.append(f"{raw_request.name}: {statuses}, and not a word of what is wrong")
        found = re.findall(rb"(?i)\r\nx-request-id: pipe-(\d+)", send_raw(server, pipelined()))
        is_in_order = [int(number) for number in found] == list(range(PIPELINED))
        if not is_alive(server):
            problems.append("the server is not well afterwards")
    return Outcome(
        count=len(sayings) + PIPELINED,
        happened=(
            f"{len(sayings) - len(problems)} of {len(sayings)} ambiguous requests got the one correct response"
            f" and the connection was closed; {len(found)} of {PIPELINED} pipelined requests were answered,"
            f" {'in order' if is_in_order else 'out of order'}"
        ),
        figures=(
            Figure("smuggled requests answered", smuggled, most=0),
            Figure("ambiguous requests with status 5xx", failed, most=0),
            Figure("pipelined requests answered in order", len(found) if is_in_order else 0, least=PIPELINED),
        ),
        problems=tuple(problems),
    )


def is_hung_up(received: bytes) -> bool:
    """Whether the reply closes the connection; HTTP/1.0 always does."""
    head = received.partition(b"\r\n\r\n")[0].lower()
    return b"\r\nconnection: close" in head or not head.startswith(b"http/1.1")


def is_alive(server: Running) -> bool:
    """Whether a server runs and answers."""
    return server.process.poll() is None and fetch(server, "/health").status == 200


CASES = (
    Case(
        "hygiene",
        "ambiguous HTTP with a smuggled request: lengths, codings, chunks, heads, targets",
        hygiene,
    ),
)
