"""URLs and paths in every field of a request: nothing is fetched and no file is read for a client."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, parse, post
from faults.dialects import MESSAGES, OLLAMA_CHAT, RESPONSES
from faults.hygiene import CLOSE, lines
from tests.models import vision
from tests.support.faults import send_raw, small_server
from tests.support.raw import Json
from tests.support.server import KEY, Running
from tests.support.upstream import gateway, upstream
from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import redirect

SECRET = b"canary-in-a-file-8d1c6f"
FOREIGN = (b"root:x:0:", SECRET)
"""Content of files that may not be read for a client."""
REFUSED = tuple(range(400, 500))
HARMLESS = (200, *REFUSED)
PASSED = (*HARMLESS, 502)
"""Through a gateway: also redirects of the upstream, which are not followed."""

ADDRESSES = [
    *(f"http://{host}:{{port}}/x.png" for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0")),
    *(f"http://{host}:{{port}}/" for host in ("0", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::]")),
    "https://127.0.0.1:{port}/",
    "HTTP://127.0.0.1:{port}/",
    "\thttp://127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "http:/\\127.0.0.1:{port}/",
    "http://good.example@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@good.example/",
    "http://127.0.0.1:{port}#@good.example/",
    "http://good.example#@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/\r\nX: y",
    "http://169.254.169.254/latest/meta-data/",
    "http://metadata.google.internal/computeMetadata/v1/",
    *(f"{scheme}://127.0.0.1:{{port}}/_x" for scheme in ("ftp", "gopher", "dict", "ldap", "ws", "s3", "unix")),
    "jar:http://127.0.0.1:{port}/x!/y",
    "file://{file}",
    "file://localhost{file}",
    "file:///etc/passwd",
    "{file}",
    "/etc/passwd",
    "../../../../../../../../../../etc/passwd",
    "..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    "....//....//....//....//etc/passwd",
    "..\\..\\..\\etc\\passwd",
    "/proc/self/environ",
    "{file}\x00.png",
    "~/.bashrc",
    "data:text/html;base64,PGI+",
    'data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:{port}/"/></svg>',
    "data:image/png;base64,http://127.0.0.1:{port}/",
    "data:image/png;base64,{file}",
    "data:image/png,http://127.0.0.1:{port}/",
    "data:;base64,",
]


class Field(NamedTuple):
    """A request field that can hold a URL or a path."""

    name: str
    path: str
    body: Callable[[str], Json]
    right: tuple[int, ...] = REFUSED
    """The statuses of a server with a local model."""


def _message(part: Json) -> Json:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, part]}]}


def _item(part: Json) -> Json:
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Look"}, part]}]}


HI: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
FIELDS = (
    Field("image_url", CHAT, lambda url: _message({"type": "image_url", "image_url": {"url": url}})),
    Field("image_url as a text", CHAT, lambda url: _message({"type": "image_url", "image_url": url})),
    Field("video_url", CHAT, lambda url: _message({"type": "video_url", "video_url": {"url": url}})),
    Field(
        "input_audio",
        CHAT,
        lambda url: _message({"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}),
    ),
    Field("file_id", CHAT, lambda url: _message({"type": "file", "file": {"file_id": url}})),
    Field("file_data", CHAT, lambda url: _message({"type": "file", "file": {"file_data": url, "filename": url}})),
    Field("the model", CHAT, lambda url: {**HI, "model": url}),
    Field("a tool", CHAT, lambda url: {**HI, "tools": [{"type": "mcp", "server_url": url, "server_label": "x"}]}),
    Field("a function", CHAT, lambda url: {**HI, "tools": [{"type": "function", "function": {"name": url}}]}, HARMLESS),
    Field("$ref", CHAT, lambda url: {**HI, "response_format": _schema(url)}, HARMLESS),
    Field("where to ask", CHAT, lambda url: {**HI, "api_base": url, "base_url": url, "user": url}, HARMLESS),
    Field("a template", CHAT, lambda url: {**HI, "chat_template": f"{{% include '{url}' %}}"}, HARMLESS),
    Field("lora", CHAT, lambda url: {**HI, "lora": [{"path": url}], "mmproj": url, "grammar": url}, HARMLESS),
    Field("input_image", RESPONSES, lambda url: _item({"type": "input_image", "image_url": url})),
    Field("its file_id", RESPONSES, lambda url: _item({"type": "input_image", "file_id": url})),
    Field("file_url", RESPONSES, lambda url: _item({"type": "input_file", "file_url": url})),
    Field("an input_file", RESPONSES, lambda url: _item({"type": "input_file", "file_id": url})),
    Field("previous_response_id", RESPONSES, lambda url: {"input": "Hi", "previous_response_id": url}),
    Field("a prompt", RESPONSES, lambda url: {"input": "Hi", "prompt": {"id": url}}),
    Field(
        "an MCP server",
        RESPONSES,
        lambda url: {"input": "Hi", "tools": [{"type": "mcp", "server_url": url}]},
        HARMLESS,  # tools that only OpenAI's servers run are left out
    ),
    Field("a source", MESSAGES, lambda url: _message({"type": "image", "source": {"type": "url", "url": url}})),
    Field("a file", MESSAGES, lambda url: _message({"type": "image", "source": {"type": "file", "file_id": url}})),
    Field("a document", MESSAGES, lambda url: _message({"type": "document", "source": {"type": "url", "url": url}})),
    Field(
        "MCP servers", MESSAGES, lambda url: {**HI, "mcp_servers": [{"type": "url", "url": url, "name": "x"}]}, HARMLESS
    ),
    Field("images", OLLAMA_CHAT, lambda url: {"messages": [{"role": "user", "content": "Look", "images": [url]}]}),
    Field("a model to load", "/models/load", lambda url: {"model": url}),
    Field("a model to unload", "/models/unload", lambda url: {"model": url}),
    Field("a model for vectors", "/v1/embeddings", lambda url: {"model": url, "input": "Hi"}),
)
PATHS = (
    "/v1/models/",
    "/v1/responses/",
    "/page/api/tapes/",
    "/page/api/rules/",
    "/page/api/recordings/",
    "/page/assets/",
)
HEADERS = ("x-request-id", "Host", "Referer", "X-Forwarded-Host", "X-Forwarded-For", "X-Original-URL", "traceparent")


def _schema(url: str) -> Json:
    schema = {"type": "object", "properties": {"a": {"$ref": url}}}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


class Attempt(NamedTuple):
    """One request."""

    name: str
    payload: bytes
    right: tuple[int, ...]


def tries(server: Running, port: int, file: Path, *, is_local: bool) -> Iterator[Attempt]:
    """Every address in every field. A gateway may forward fields that the upstream validates."""
    filled = [address.replace("{port}", str(port)).replace("{file}", str(file)) for address in ADDRESSES]
    for url, field in product(filled, FIELDS):
        fields = field.body(url)
        body = {"max_tokens": 1, "max_output_tokens": 16, "model": server.model, **fields}
        known = {name: value for name, value in body.items() if name in _TAKEN.get(field.path, body)}
        payload = post(msgspec.json.encode({**known, **fields}), server.port, path=field.path)
        yield Attempt(f"{field.name} = {url}", payload, field.right if is_local else PASSED)
    bearer = f"Authorization: Bearer {KEY}"
    for url, path in product(filled, PATHS):
        for name in (quote(url, safe=""), quote(url, safe="/:@%.")):
            payload = lines(f"GET {path}{name} HTTP/1.1", bearer, CLOSE)
            is_any = not is_local and path == "/v1/models/"  # whatever name there is may be an upstream's
            yield Attempt(f"GET {path}{name}", payload, HARMLESS if is_any else REFUSED)
    for url, name in product([url for url in filled if url.isprintable()], HEADERS):
        payload = post(msgspec.json.encode({"model": server.model, **HI}), server.port, headers={name: url})
        yield Attempt(f"{name}: {url}", payload, REFUSED if name == "Host" else PASSED)


_TAKEN = {
    CHAT: ("model", "max_tokens"),
    MESSAGES: ("model", "max_tokens"),
    RESPONSES: ("model", "max_output_tokens"),
    OLLAMA_CHAT: ("model",),
}


class Trap:
    """Listener on the loopback addresses that counts connections and answers none."""

    def __init__(self, *listening: socket.socket) -> None:
        self._listening = listening
        self.port: int = listening[0].getsockname()[1]

    def caught(self) -> int:
        """Connections since the previous call."""
        count = 0
        for one in self._listening:
            while True:
                try:
                    connection, _ = one.accept()
                except BlockingIOError:
                    break
                connection.close()
                count += 1
        return count


@contextmanager
def trap() -> Iterator[Trap]:
    """Run a trap until the context ends."""
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        first.setblocking(False)
        listening = [first]
        if socket.has_dualstack_ipv6():
            address = ("::1", first.getsockname()[1])
            listening.append(stack.enter_context(socket.create_server(address, family=socket.AF_INET6)))
            listening[-1].setblocking(False)
        yield Trap(*listening)


def problem(one: Attempt, received: ClientReply) -> str | None:
    """Return the problem with a reply."""
    if received.status not in one.right:
        return f"{one.name}: {received.status}: {received.body[:200]!r}"
    if any(word in received.head + received.body for word in FOREIGN):
        return f"{one.name}: a file was read: {received.body[:200]!r}"
    return None


class Reached(NamedTuple):
    """Results of the attempts."""

    tried: int
    problems: list[str]
    caught: int


def reach(context: CaseContext, server: Running, caught: Trap, file: Path, *, is_local: bool) -> Reached:
    """Send all attempts, or a sample."""
    chosen = list(tries(server, caught.port, file, is_local=is_local))
    if context.is_short:
        chosen = random.Random(context.seed).sample(chosen, 150)
    found = [problem(one, parse(send_raw(server, one.payload))) for one in context.each(chosen)]
    return Reached(len(chosen), [words for words in found if words], caught.caught())


def _outcome(reached: Reached, files: int) -> Outcome:
    good = reached.tried - len(reached.problems)
    return Outcome(
        count=reached.tried,
        happened=f"{good} of {reached.tried} got the expected response; {reached.caught} connections to a client's URL",
        figures=(
            Figure("connections to a URL from a request", reached.caught, most=0),
            Figure("files written outside the folder", files, most=0),
        ),
        problems=tuple(reached.problems),
    )


def planted(folder: Path) -> Path:
    """Write a file that may not be read."""
    file = folder / "canary.txt"
    file.write_bytes(SECRET)
    return file


def reaching_local(context: CaseContext) -> Outcome:
    """Server with a local vision model, which would have to fetch images."""
    file = planted(context.folder)
    eye = vision.projector().write(context.folder / "eye.gguf")
    with trap() as caught, small_server(context.model, "--mmproj", str(eye)) as server:
        reached = reach(context, server, caught, file, is_local=True)
    return _outcome(reached, len(set(context.folder.iterdir()) - {file, eye}))


def reaching_gateway(context: CaseContext) -> Outcome:
    """Recording gateway in front of an upstream that sometimes redirects."""
    file = planted(context.folder)
    home = context.folder / "home"
    home.mkdir()
    with trap() as caught:

        def choose(seen: MockHttpRequest) -> MockReply:
            return redirect(307, f"http://127.0.0.1:{caught.port}/") if len(seen.body) % 2 else HELLO_REPLY

        options = ["--record", str(home / "recorded")]
        with upstream(choose) as one, gateway(home, one.url, options=options) as server:
            reached = reach(context, server, caught, file, is_local=False)
    strange = {one.name for one in [*context.folder.iterdir(), *home.iterdir()]}
    return _outcome(reached, len(strange - {file.name, home.name, "recorded", "welldone.toml"}))


CASES = (
    Case(
        "reaching",
        "URLs and paths in each field of a request to a local model: SSRF and path traversal",
        reaching_local,
    ),
    Case("reaching-gateway", "the same through a recording gateway whose upstream redirects", reaching_gateway),
)
