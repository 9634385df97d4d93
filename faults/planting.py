"""A gateway with keys planted wherever one can stand, whose upstreams repeat whatever they are told."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.live.raw import CHAT, COMPLETIONS, Json, Line, Reply
from tests.live.server import Running
from tests.live.upstream import DONE, ROLE, TEXT, Upstream, by_model, gateway, upstream
from welldone.mock import script
from welldone.mock.faults import redirect
from welldone.mock.script import MockChunk, MockScript, json_reply
from welldone.mock.server import MockHttpRequest

CLIENT = "wd-canary-of-the-client-55aa66bb"
NAMED = "wd-canary-of-a-named-key-77cc88dd"
STRANGER = "wd-canary-of-a-stranger-99ee00ff"
KEYS = {"a": "canary-key-of-upstream-a-1122", "b": "canary-key-of-upstream-b-3344"}
HEADER = "canary-in-an-upstream-header-5566"
PROMPT = "zebra-canary-prompt-4711"
THEIRS = (CLIENT, NAMED, STRANGER)
OURS = (*KEYS.values(), HEADER)

WAYS = (
    "tell-400",
    "tell-401",
    "tell-404",
    "tell-429",
    "tell-500",
    "tell-503",
    "tell-event",
    "tell-late",
    "redirect-key",
)
"""Models whose upstreams repeat, in an error, all that they were told."""


def indiscreet(seen: MockHttpRequest) -> script.MockReply:
    """An upstream that repeats all it was told: in errors, in events, in headers."""
    model = json.loads(seen.body).get("model", "") if seen.body.startswith("{") else ""
    key, header = (seen.headers.get(name, "").removeprefix("Bearer ") for name in ("authorization", "x-extra"))
    told = f"neither {key} nor {header} is enough for {seen.path} with {seen.headers}"
    error = {"error": {"message": told, "type": header, "param": told, "code": key, "more": {"told": told}}}
    event = MockChunk(f"data: {json.dumps(error)}\n\n")
    way, _, word = model.partition("-")
    if way == "redirect":
        return redirect(307, f"http://127.0.0.1:9/v1?key={key}")
    if way != "tell":
        reply = by_model(seen)
    elif word == "event":
        reply = script.MockReply((event, DONE))
    elif word == "late":
        reply = script.MockReply((ROLE, TEXT, MockChunk(event.text, after_s=0.05), DONE))
    else:
        reply = json_reply(error, int(word))
    more = {"x-debug": str(seen.headers), "Set-Cookie": f"key={key}", "x-key": told}
    return msgspec.structs.replace(reply, headers={**reply.headers, **more})


def lists(key: str) -> MockScript:
    """The same in its list of models."""
    more = {"owned_by": f"Bearer {key}", "note": HEADER, "deep": {"er": [key]}}
    return MockScript(models={"object": "list", "data": [{"id": "hello", **more}, {"id": f"{key}-model"}]})


@dataclass
class Scene:
    """All who take part, and what they saw and said."""

    server: Running
    upstreams: dict[str, Upstream]
    folder: Path
    heard: list[bytes] = field(default_factory=list)

    def ask(self, path: str, body: Json | None = None, *, key: str | None = CLIENT, **headers: str) -> Reply:
        """A request with a key, whose reply is remembered as it came, with its head."""
        said = {} if key is None else {"Authorization": f"Bearer {key}"}
        with Line(self.server, path, body, headers={**said, **headers}) as line:
            reply = line.reply()
            self.heard.append(line.heard)
        return reply


@contextmanager
def playing(folder: Path, log_format: str, *options: str, more: str = "") -> Iterator[Scene]:
    """All of them, with a log that says all it can, and everything recorded."""
    options = ("--log-format", log_format, "--log-level", "debug", "-v", "--report", *options)
    options += ("--record", str(folder / "recorded"))
    with ExitStack() as stack:
        found = {name: stack.enter_context(upstream(indiscreet, lists(key))) for name, key in KEYS.items()}
        tables = [
            f'[upstreams.{name}]\nurl = "{one.url}"\nmodels = ["*"]\nkey = "env:KEY_{name}"\n'
            f'headers = {{ "x-extra" = "Bearer {HEADER}" }}\n'
            for name, one in found.items()
        ]
        keys = '[keys.ci]\nkey = "env:CI_KEY"\n[routes]\n"only-a" = "hello@a"\n"only-b" = "hello@b"\n'
        environment = {"CI_KEY": NAMED, **{f"KEY_{name}": key for name, key in KEYS.items()}}
        said = "\n".join([*tables, keys, more])
        server = stack.enter_context(gateway(folder, options=options, more=said, key=CLIENT, environment=environment))
        yield Scene(server, found, folder / "recorded")


def provoke(scene: Scene) -> None:
    """Requests of all kinds, with keys wherever a client may put one."""
    message = {"role": "user", "content": PROMPT}
    query = f"?api_key={CLIENT}&key={NAMED}&token={CLIENT}"
    places = {"api_key": CLIENT, "api_base": "http://127.0.0.1:9/v1", "extra_headers": {"Authorization": CLIENT}}
    for model in ("hello", "only-a", "only-b", "no-done", "cut", "hang-not", *WAYS):
        for stream in (True, False):
            body = {"model": model, "messages": [message], "stream": stream}
            scene.ask(CHAT, body)
            scene.ask(CHAT + query, {**body, **places}, key=NAMED, Cookie=f"key={CLIENT}", Referer=f"http://x/{query}")
    for key in (STRANGER, None):
        assert scene.ask(CHAT + f"?api_key={STRANGER}", {"model": "hello"}, key=key or "").status == 401
    scene.ask(CHAT, {"model": "hello", "messages": [message]}, **{"x-api-key": CLIENT, "OpenAI-Organization": NAMED})
    scene.ask(COMPLETIONS, {"model": "only-a", "prompt": PROMPT, "stream": True})
    for path in ("/v1/embeddings", "/v1/audio/speech", "/v1/moderations", "/v1/rerank"):
        for model in ("hello", "tell-400", "tell-500", "tell-429"):
            scene.ask(path + query, {"model": model, "input": PROMPT, **places}, Cookie=CLIENT, **{"x-api-key": CLIENT})
    for path in (
        "/v1/models",
        "/v1/models/hello",
        "/metrics",
        "/health",
        "/",
        "/page/api/state",
        "/page/api/rules/end-done-last",
        "/props",
        "/v1/nothing",
        f"/v1/files{query}",
    ):
        scene.ask(path)
