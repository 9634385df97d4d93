"""Pages of other sites, names that are not ours, and strangers without a key: what each of them gets, path by path.

What is right is decided here anew, from what docs/serve.md promises, and with no code of the server.
"""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from faults.asking import Heard, chat, parse
from faults.case import Case, Figure, Outcome, Stage
from faults.hygiene import CLOSE, lines
from tests.live.faults import speak
from tests.live.raw import CHAT
from tests.live.routes import OPEN, all_routes
from tests.live.server import KEY, Running
from tests.live.upstream import gateway, upstream

APP = "https://app.example"
BOX = "box.example"
BEARER = f"Authorization: Bearer {KEY}"

Name: TypeAlias = Literal["own", "named", "bare", "foreign", "broken"]
"""`named`: what --allowed-hosts may name; `bare`: an address, or a name without a dot, which no attacker can own."""

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
"""The origins that a browser may send, for whom they stand."""

Kind: TypeAlias = Literal["look", "ask", "preflight", "image"]
KINDS: tuple[Kind, ...] = ("look", "ask", "preflight", "image")
"""`image`: what a page fetches without an Origin, of which only another header tells."""


class House(NamedTuple):
    """A server as it may be set up."""

    options: tuple[str, ...] = ()
    key: str | None = None
    is_public: bool = False
    has_names: bool = False
    pages: Literal["none", "app", "all"] = "none"


HOUSES = (
    House(),
    House(("--allowed-hosts", BOX, "--cors-origins", APP), key=KEY, has_names=True, pages="app"),
    House(("--host", "0.0.0.0", "--no-api-key"), is_public=True),
    House(("--host", "0.0.0.0"), key=KEY, is_public=True),
    House(("--host", "0.0.0.0", "--allowed-hosts", BOX), key=KEY, is_public=True, has_names=True),
    House(("--cors-origins", "*"), pages="all"),
)


class Visit(NamedTuple):
    """One request of a browser."""

    host: str
    name: Name
    origin: str
    page: Page
    kind: Kind

    def said(self, number: int, key: str | None) -> bytes:
        """Its bytes. By its number an upstream tells which one it was."""
        named = f"Host: {self.host}"
        more = [CLOSE, *([f"Origin: {self.origin}"] if self.origin else [])]
        if self.kind == "preflight":
            asked = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"]
            return lines(f"OPTIONS {CHAT} HTTP/1.1", *more, *asked, host=named)
        more += [] if key is None else [f"Authorization: Bearer {key}"]
        if self.kind == "ask":
            body = chat("hello", f"visit {number}.", stream=False)
            more += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            return lines(f"POST {CHAT} HTTP/1.1", *more, host=named) + body
        more += ["Sec-Fetch-Site: cross-site"] if self.kind == "image" else []
        return lines("GET /v1/models HTTP/1.1", *more, host=named)


def visits(port: int) -> Iterator[Visit]:
    """Every host with every origin, in every way to ask."""
    for (host, name), (origin, page), kind in product(HOSTS.items(), PAGES.items(), KINDS):
        named = host.format(port=port)
        if name != "broken" or page != "same":  # what is no host has no page
            yield Visit(named, name, origin.format(host=named), page, kind)


def is_known(house: House, name: Name) -> bool:
    """Whether the server answers to a name."""
    if name in ("own", "named"):
        return name == "own" or house.has_names or (house.is_public and house.key is not None)
    if not house.is_public or house.has_names:
        return False
    return name == "bare" or house.key is not None


def right(house: House, visit: Visit) -> tuple[int, str | None]:
    """The status, and the page that is told that it may read the reply."""
    if visit.name == "broken":
        return 400, None
    if not is_known(house, visit.name):
        return 403, None
    passed = 204 if visit.kind == "preflight" else 200
    match visit.page:
        case "none" if visit.kind == "preflight":
            return (405 if house.key is None else 401), None  # without an Origin it is no preflight
        case "none":
            return (403 if visit.kind == "image" else 200), None
        case _ if house.pages == "all":
            return passed, "*"
        case "same":
            return passed, None
        case "app" if house.pages == "app":
            return passed, APP
        case _:
            return 403, None


def header(heard: Heard, name: str) -> str | None:
    """The value of a header; several are put together."""
    found = [line.partition(b":") for line in heard.head.split(b"\r\n")[1:]]
    values = [value.strip().decode("latin-1") for key, _, value in found if key.decode("latin-1").lower() == name]
    return ", ".join(values) if values else None


def visit_all(stage: Stage, house: House, folder: Path) -> tuple[int, list[str], int]:
    """How many visits there were, what was wrong, and how many acted that should not."""
    folder.mkdir()
    with upstream() as one, gateway(folder, one.url, options=house.options, key=house.key) as server:
        chosen = list(visits(server.port))
        if stage.is_short:
            chosen = random.Random(stage.seed).sample(chosen, 200)
        expected = [right(house, visit) for visit in chosen]
        troubles = []
        for number, (visit, (status, page)) in enumerate(zip(stage.each(chosen), expected, strict=True)):
            heard = parse(speak(server, visit.said(number, house.key)))
            told = header(heard, "access-control-allow-origin")
            is_open = header(heard, "access-control-allow-credentials") is not None
            if (heard.status, told) != (status, page) or is_open:
                troubles.append(f"{house.options} {visit}: {heard.status} and {told}, not {status} and {page}")
        may = {number for number, (status, _) in enumerate(expected) if status == 200 and chosen[number].kind == "ask"}
        did = {int(seen.body.partition("visit ")[2].partition(".")[0]) for seen in one.posts()}
    return len(chosen), troubles, len(did ^ may)


def origins(stage: Stage) -> Outcome:
    """Visits of all kinds to servers of all kinds."""
    houses = HOUSES[: stage.times(len(HOUSES), 2)]
    seen = [visit_all(stage, house, stage.folder / str(number)) for number, house in enumerate(houses)]
    count = sum(asked for asked, _, _ in seen)
    troubles = [words for _, found, _ in seen for words in found]
    return Outcome(
        count=count,
        happened=(
            f"{count - len(troubles)} of {count} requests to {len(houses)} servers had the status and the CORS headers"
            " that the rules give for their Host and their Origin"
        ),
        figures=(
            Figure("requests that were let in or kept out wrongly", len(troubles), most=0),
            Figure(
                "answers that were made and should not have been, or the other way round",
                sum(one[2] for one in seen),
                most=0,
            ),
        ),
        troubles=tuple(troubles),
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
ADMINS = {("POST", "/models/load"), ("POST", "/models/unload"), ("GET", "/page/api/recordings/x")}
ADMINS |= {("HEAD", "/page/api/recordings/x")}
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


class Knock(NamedTuple):
    """A request for a path, with or without a key, and the statuses that are right."""

    method: str
    path: str
    who: str
    headers: tuple[str, ...]
    right: range | tuple[int, ...]

    def problem(self, server: Running) -> str | None:
        """What is wrong with its reply."""
        heard = parse(speak(server, lines(f"{self.method} {self.path} HTTP/1.1", CLOSE, *self.headers)))
        if heard.status in self.right and KEY.encode() not in heard.head + heard.body:
            return None
        return f"{self.method} {self.path} with {self.who}: {heard.status}, not {self.right}: {heard.body[:200]!r}"


def knocks(folder: Path) -> Iterator[Knock]:
    """Every path with every method, by everyone."""
    routes = all_routes(folder)
    paths = [(prefix + path.replace("*", "x"), path in OPEN) for path in routes for prefix in ("", "/v1")]
    for (path, is_open), method in product(paths, METHODS):
        for who, headers in STRANGERS.items():
            yield Knock(method, path, who, headers, (200, 404, 405) if is_open else (401,))
        yield Knock(method, f"{path}?api_key={KEY}", "a key in the address", (), (200, 404, 405) if is_open else (401,))
        conflict = (BEARER, "x-api-key: wd-another-key")
        yield Knock(method, path, "two keys", conflict, (200, 404, 405) if is_open else (400,))
        bare = path.removeprefix("/v1")
        named = (f"Authorization: Bearer {NAMED}",)
        allowed = (200, *range(400, 401), *range(404, 500))
        yield Knock(method, path, "the key", (BEARER,), allowed)
        yield Knock(method, path, "a named key", named, (403,) if (method, bare) in ADMINS else allowed)
    for path, method, (who, headers) in product(ODD, METHODS, STRANGERS.items()):
        yield Knock(
            method, path, who, headers, (400, 401, 404, 405) if path.startswith("/page/assets/") else (400, 401)
        )


def routes_and_keys(stage: Stage) -> Outcome:
    """Knock at all of them."""
    more = '[keys.ci]\nkey = "env:CI_KEY"\n'
    with (
        upstream() as one,
        gateway(stage.folder, one.url, options=["--slots"], more=more, environment={"CI_KEY": NAMED}) as server,
    ):
        all_of_them = list(knocks(stage.folder))
        chosen = random.Random(stage.seed).sample(all_of_them, 800) if stage.is_short else all_of_them
        troubles = [words for knock in stage.each(chosen) if (words := knock.problem(server)) is not None]
    paths = len({knock.path.partition("?")[0] for knock in chosen})
    return Outcome(
        count=len(chosen),
        happened=(
            f"{len(chosen) - len(troubles)} of {len(chosen)} requests for {paths} paths got what their key is worth;"
            f" open to all are {', '.join(sorted(OPEN))}"
        ),
        figures=(Figure("paths that were open or closed wrongly", len(troubles), most=0),),
        troubles=tuple(troubles),
    )


CASES = (
    Case(
        "origins",
        "every kind of Host with every kind of Origin, by look, question and preflight, on servers of each setup",
        origins,
    ),
    Case(
        "routes-and-keys",
        "every path by every method, with no key, a wrong one, one in a wrong place, two, and the right ones",
        routes_and_keys,
    ),
)
