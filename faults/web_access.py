"""Host, Origin and key checks on every path: pages of other sites, foreign host names, clients without a key.

The expected replies are computed here from what docs/serve.md promises, without code of the server.
"""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientReply, chat, parse
from faults.hygiene import CLOSE, lines
from tests.live.routes import OPEN, all_routes
from tests.support.faults import send_raw
from tests.support.raw import CHAT
from tests.support.server import KEY, Running
from tests.support.upstream import gateway, upstream

APP = "https://app.example"
BOX = "box.example"
BEARER = f"Authorization: Bearer {KEY}"

Name: TypeAlias = Literal["own", "named", "bare", "foreign", "broken"]
"""`named`: for --allowed-hosts; `bare`: an address or a name without a dot, which an attacker cannot own."""

HOSTS: dict[str, Name] = {
    "127.0.0.1:{port}": "own",
    "localhost:{port}": "own",
    "localhost": "own",
    "LocalHost.": "own",
    "[::1]:{port}": "own",
    "[0:0:0:0:0:0:0:1]": "own",
    BOX: "named",
    f"{BOX}.:{{port}}": "named",
    "169.254.169.254": "bare",
    "10.1.2.3:{port}": "bare",
    "[fe80::1]": "bare",
    "2130706433": "bare",
    "0x7f000001": "bare",
    "printer": "bare",
    "evil.example:{port}": "foreign",
    "127.0.0.1.evil.example": "foreign",
    "localhost.evil.example": "foreign",
    f"{BOX}.evil.example": "foreign",
    f"x{BOX}": "foreign",
    "localhost@evil.example": "broken",
    "evil.example#localhost": "broken",
    "evil.example/localhost": "broken",
    "localhost evil.example": "broken",
    "localhost, evil.example": "broken",
    "http://localhost": "broken",
    "localhost:99999": "broken",
    "localhost:-1": "broken",
    "::1": "broken",
    "[::1": "broken",
    "[evil.example]": "broken",
    "..": "broken",
    "": "broken",
}

Page: TypeAlias = Literal["none", "same", "app", "foreign"]

PAGES: dict[str, Page] = {
    "": "none",
    "http://{host}": "same",
    APP: "app",
    "https://{host}": "foreign",
    "http://{host}1": "foreign",
    "null": "foreign",
    "file://": "foreign",
    "chrome-extension://abcdefghijklmnop": "foreign",
    "https://evil.example": "foreign",
    "http://localhost:3": "foreign",
    "http://app.example": "foreign",
    f"{APP}:444": "foreign",
    f"{APP}.evil.example": "foreign",
    "https://evil.app.example": "foreign",
    "*": "foreign",
    f"{APP}, https://evil.example": "foreign",
}
"""Origins that a browser may send, by site."""

Kind: TypeAlias = Literal["look", "ask", "preflight", "image"]
KINDS: tuple[Kind, ...] = ("look", "ask", "preflight", "image")
"""`image`: a request without Origin, visible only in Sec-Fetch-Site."""


class ServerSetup(NamedTuple):
    """Configuration of a server."""

    options: tuple[str, ...] = ()
    key: str | None = None
    is_public: bool = False
    has_names: bool = False
    pages: Literal["none", "app", "all"] = "none"


SETUPS = (
    ServerSetup(),
    ServerSetup(("--allowed-hosts", BOX, "--cors-origins", APP), key=KEY, has_names=True, pages="app"),
    ServerSetup(("--host", "0.0.0.0", "--no-api-key"), is_public=True),
    ServerSetup(("--host", "0.0.0.0"), key=KEY, is_public=True),
    ServerSetup(("--host", "0.0.0.0", "--allowed-hosts", BOX), key=KEY, is_public=True, has_names=True),
    ServerSetup(("--cors-origins", "*"), pages="all"),
)


class Visit(NamedTuple):
    """One request of a browser."""

    host: str
    name: Name
    origin: str
    page: Page
    kind: Kind

    def payload(self, number: int, key: str | None) -> bytes:
        """Encode the request; the number identifies it at the upstream."""
        named = f"Host: {self.host}"
        more = [CLOSE, *([f"Origin: {self.origin}"] if self.origin else [])]
        if self.kind == "preflight":
            preflight = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"]
            return lines(f"OPTIONS {CHAT} HTTP/1.1", *more, *preflight, host=named)
        more += [] if key is None else [f"Authorization: Bearer {key}"]
        if self.kind == "ask":
            body = chat("hello", f"visit {number}.", stream=False)
            more += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            return lines(f"POST {CHAT} HTTP/1.1", *more, host=named) + body
        more += ["Sec-Fetch-Site: cross-site"] if self.kind == "image" else []
        return lines("GET /v1/models HTTP/1.1", *more, host=named)


def visits(port: int) -> Iterator[Visit]:
    """Every Host with every Origin, for every kind of request."""
    for (host, name), (origin, page), kind in product(HOSTS.items(), PAGES.items(), KINDS):
        named = host.format(port=port)
        if name != "broken" or page != "same":  # an invalid host has no origin
            yield Visit(named, name, origin.format(host=named), page, kind)


def is_known(setup: ServerSetup, name: Name) -> bool:
    """Whether the server accepts a host name."""
    if name in ("own", "named"):
        return name == "own" or setup.has_names or (setup.is_public and setup.key is not None)
    if not setup.is_public or setup.has_names:
        return False
    return name == "bare" or setup.key is not None


def right(setup: ServerSetup, visit: Visit) -> tuple[int, str | None]:
    """Return the expected status and allowed origin."""
    if visit.name == "broken":
        return 400, None
    if not is_known(setup, visit.name):
        return 403, None
    passed = 204 if visit.kind == "preflight" else 200
    match visit.page:
        case "none" if visit.kind == "preflight":
            return (405 if setup.key is None else 401), None  # without an Origin it is no preflight
        case "none":
            return (403 if visit.kind == "image" else 200), None
        case _ if setup.pages == "all":
            return passed, "*"
        case "same":
            return passed, None
        case "app" if setup.pages == "app":
            return passed, APP
        case _:
            return 403, None


def header(received: ClientReply, name: str) -> str | None:
    """Return the value of a header; several are joined."""
    found = [line.partition(b":") for line in received.head.split(b"\r\n")[1:]]
    values = [value.strip().decode("latin-1") for key, _, value in found if key.decode("latin-1").lower() == name]
    return ", ".join(values) if values else None


def visit_all(context: CaseContext, setup: ServerSetup, folder: Path) -> tuple[int, list[str], int]:
    """Return the number of visits, the problems, and the number of forbidden actions."""
    folder.mkdir()
    with upstream() as one, gateway(folder, one.url, options=setup.options, key=setup.key) as server:
        chosen = list(visits(server.port))
        if context.is_short:
            chosen = random.Random(context.seed).sample(chosen, 200)
        expected = [right(setup, visit) for visit in chosen]
        problems = []
        for number, (visit, (status, page)) in enumerate(zip(context.each(chosen), expected, strict=True)):
            received = parse(send_raw(server, visit.payload(number, setup.key)))
            allowed_origin = header(received, "access-control-allow-origin")
            is_open = header(received, "access-control-allow-credentials") is not None
            if (received.status, allowed_origin) != (status, page) or is_open:
                problems.append(
                    f"{setup.options} {visit}: {received.status} and {allowed_origin}, not {status} and {page}"
                )
        may = {number for number, (status, _) in enumerate(expected) if status == 200 and chosen[number].kind == "ask"}
        did = {int(seen.body.partition("visit ")[2].partition(".")[0]) for seen in one.posts()}
    return len(chosen), problems, len(did ^ may)


def origins(context: CaseContext) -> Outcome:
    """Send all visits to all servers."""
    setups = SETUPS[: context.times(len(SETUPS), 2)]
    seen = [visit_all(context, setup, context.folder / str(number)) for number, setup in enumerate(setups)]
    count = sum(preflight for preflight, _, _ in seen)
    problems = [words for _, found, _ in seen for words in found]
    return Outcome(
        count=count,
        happened=(
            f"{count - len(problems)} of {count} requests to {len(setups)} servers got the status and the CORS headers"
            " that their Host and Origin require"
        ),
        figures=(
            Figure("requests wrongly allowed or rejected", len(problems), most=0),
            Figure(
                "generations wrongly started or not started",
                sum(one[2] for one in seen),
                most=0,
            ),
        ),
        problems=tuple(problems),
    )


# Keys.

NAMED = "wd-of-a-named-key-77cc88dd"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
STRANGERS: dict[str, tuple[str, ...]] = {
    "no key": (),
    "a wrong key": ("Authorization: Bearer wd-somebody-elses-key",),
    "a key that is too short by one letter": (f"Authorization: Bearer {KEY[:-1]}",),
    "a key as a password": (f"Authorization: Basic {KEY}",),
    "a key without its word": (f"Authorization: {KEY}",),
    "a key in a cookie": (f"Cookie: api_key={KEY}; Authorization=Bearer {KEY}",),
    "a key in a header of another name": (f"x_api_key: {KEY}", f"Proxy-Authorization: Bearer {KEY}"),
}
_READ_BY_ADMINS = ("/keys", "/admin/mirror", "/page/api/recordings/x")
ADMINS = {("POST", "/models/load"), ("POST", "/models/unload"), ("POST", "/keys"), ("DELETE", "/keys/x")}
ADMINS |= set(product(("GET", "HEAD"), _READ_BY_ADMINS))
ODD = ["/%2e%2e/health", "//health", "/health/", "/health/../metrics", "/health%2f..%2fmetrics", "/HEALTH", "/health;x"]
ODD += [
    "/page/assets/../api/state",
    "/page/assets/..%2fapi%2fstate",
    "/page/assets",
    "/page/assets/",
    "/page/",
    "/page",
]
ODD += [
    "/v1/health/../models",
    "/v1/v1/health",
    "/health%00",
    "/health%20",
    "/%68ealth/../metrics",
    "/nothing",
    "/.env",
]
ODD += [
    "/page/assets/../../v1/models",
    "/page/assets/x/../../api/state",
    "/./metrics",
    "/metrics/",
    "/metrics?x=/health",
]
"""Paths that look like an open one, or lead from it to another."""


class PathRequest(NamedTuple):
    """Request for a path with or without a key, and the accepted statuses."""

    method: str
    path: str
    who: str
    headers: tuple[str, ...]
    right: range | tuple[int, ...]

    def problem(self, server: Running) -> str | None:
        """Return the problem with the reply."""
        received = parse(send_raw(server, lines(f"{self.method} {self.path} HTTP/1.1", CLOSE, *self.headers)))
        if received.status in self.right and KEY.encode() not in received.head + received.body:
            return None
        return (
            f"{self.method} {self.path} with {self.who}: {received.status}, not {self.right}: {received.body[:200]!r}"
        )


def path_requests(folder: Path) -> Iterator[PathRequest]:
    """Every path with every method and every kind of key."""
    routes = all_routes(folder)
    paths = [(prefix + path.replace("*", "x"), path in OPEN) for path in routes for prefix in ("", "/v1")]
    for (path, is_open), method in product(paths, METHODS):
        for who, headers in STRANGERS.items():
            yield PathRequest(method, path, who, headers, (200, 404, 405) if is_open else (401,))
        yield PathRequest(
            method, f"{path}?api_key={KEY}", "a key in the address", (), (200, 404, 405) if is_open else (401,)
        )
        conflict = (BEARER, "x-api-key: wd-another-key")
        yield PathRequest(method, path, "two keys", conflict, (200, 404, 405) if is_open else (400,))
        bare = path.removeprefix("/v1")
        named = (f"Authorization: Bearer {NAMED}",)
        allowed = (200, *range(400, 401), *range(404, 500))
        yield PathRequest(method, path, "the key", (BEARER,), allowed)
        yield PathRequest(method, path, "a named key", named, (403,) if (method, bare) in ADMINS else allowed)
    for path, method, (who, headers) in product(ODD, METHODS, STRANGERS.items()):
        yield PathRequest(
            method, path, who, headers, (400, 401, 404, 405) if path.startswith("/page/assets/") else (400, 401)
        )


def routes_and_keys(context: CaseContext) -> Outcome:
    """Send all requests."""
    more = '[keys.ci]\nkey = "env:CI_KEY"\n'
    with (
        upstream() as one,
        gateway(context.folder, one.url, options=["--slots"], more=more, environment={"CI_KEY": NAMED}) as server,
    ):
        all_of_them = list(path_requests(context.folder))
        chosen = random.Random(context.seed).sample(all_of_them, 800) if context.is_short else all_of_them
        problems = [words for request in context.each(chosen) if (words := request.problem(server)) is not None]
    paths = len({request.path.partition("?")[0] for request in chosen})
    return Outcome(
        count=len(chosen),
        happened=(
            f"{len(chosen) - len(problems)} of {len(chosen)} requests for {paths} paths got the access that their key"
            f" grants; public: {', '.join(sorted(OPEN))}"
        ),
        figures=(Figure("paths with wrong access", len(problems), most=0),),
        problems=tuple(problems),
    )


CASES = (
    Case(
        "origins",
        "every kind of Host with every kind of Origin, for GET, POST and preflight, on servers of each configuration",
        origins,
    ),
    Case(
        "routes-and-keys",
        "every path with every method, with no key, a wrong one, one in the wrong place, two, and the right ones",
        routes_and_keys,
    ),
)
