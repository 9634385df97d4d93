"""A gateway with keys planted in every setting, in front of upstreams that echo what they receive."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.support.raw import CHAT, COMPLETIONS, Json, RawConnection, Reply
from tests.support.server import Running
from tests.support.upstream import DONE, ROLE, TEXT, Upstream, gateway, reply_by_model, upstream
from welldone.mock import script
from welldone.mock.script import MockChunk, MockScript, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import redirect

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
"""Models whose upstreams echo the request in an error."""


def indiscreet(seen: MockHttpRequest) -> script.MockReply:
    """Upstream that echoes the request in errors, events and headers."""
    model = json.loads(seen.body).get("model", "") if seen.body.startswith("{") else ""
    key, header = (seen.headers.get(name, "").removeprefix("Bearer ") for name in ("authorization", "x-extra"))
    echo = f"neither {key} nor {header} is enough for {seen.path} with {seen.headers}"
    error = {"error": {"message": echo, "type": header, "param": echo, "code": key, "more": {"told": echo}}}
    event = MockChunk(f"data: {json.dumps(error)}\n\n")
    action, _, word = model.partition("-")
    if action == "redirect":
        return redirect(307, f"http://127.0.0.1:9/v1?key={key}")
    if action != "tell":
        reply = reply_by_model(seen)
    elif word == "event":
        reply = script.MockReply((event, DONE))
    elif word == "late":
        reply = script.MockReply((ROLE, TEXT, MockChunk(event.text, after_s=0.05), DONE))
    else:
        reply = json_reply(error, int(word))
    more = {"x-debug": str(seen.headers), "Set-Cookie": f"key={key}", "x-key": echo}
    return msgspec.structs.replace(reply, headers={**reply.headers, **more})


def lists(key: str) -> MockScript:
    """The same in its list of models."""
    more = {"owned_by": f"Bearer {key}", "note": HEADER, "deep": {"er": [key]}}
    return MockScript(models={"object": "list", "data": [{"id": "hello", **more}, {"id": f"{key}-model"}]})


@dataclass
class Scene:
    """Server, upstreams and recorded replies."""

    server: Running
    upstreams: dict[str, Upstream]
    folder: Path
    received: list[bytes] = field(default_factory=list)

    def send(self, path: str, body: Json | None = None, *, key: str | None = CLIENT, **headers: str) -> Reply:
        """Send a request with a key and record the raw reply."""
        content = {} if key is None else {"Authorization": f"Bearer {key}"}
        with RawConnection(self.server, path, body, headers={**content, **headers}) as line:
            reply = line.reply()
            self.received.append(line.received)
        return reply


@contextmanager
def playing(folder: Path, log_format: str, *options: str, more: str = "") -> Iterator[Scene]:
    """Run all of them with debug logs and recording."""
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
        content = "\n".join([*tables, keys, more])
        server = stack.enter_context(
            gateway(folder, options=options, more=content, key=CLIENT, environment=environment)
        )
        yield Scene(server, found, folder / "recorded")


def provoke(scene: Scene) -> None:
    """Send requests of all kinds, with keys wherever a client may put one."""
    message = {"role": "user", "content": PROMPT}
    query = f"?api_key={CLIENT}&key={NAMED}&token={CLIENT}"
    planted = {"api_key": CLIENT, "api_base": "http://127.0.0.1:9/v1", "extra_headers": {"Authorization": CLIENT}}
    for model in ("hello", "only-a", "only-b", "no-done", "cut", "hang-not", *WAYS):
        for stream in (True, False):
            body = {"model": model, "messages": [message], "stream": stream}
            scene.send(CHAT, body)
            scene.send(
                CHAT + query, {**body, **planted}, key=NAMED, Cookie=f"key={CLIENT}", Referer=f"http://x/{query}"
            )
    for key in (STRANGER, None):
        assert scene.send(CHAT + f"?api_key={STRANGER}", {"model": "hello"}, key=key or "").status == 401
    scene.send(CHAT, {"model": "hello", "messages": [message]}, **{"x-api-key": CLIENT, "OpenAI-Organization": NAMED})
    scene.send(COMPLETIONS, {"model": "only-a", "prompt": PROMPT, "stream": True})
    for path in ("/v1/embeddings", "/v1/audio/speech", "/v1/moderations", "/v1/rerank"):
        for model in ("hello", "tell-400", "tell-500", "tell-429"):
            scene.send(
                path + query, {"model": model, "input": PROMPT, **planted}, Cookie=CLIENT, **{"x-api-key": CLIENT}
            )
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
        scene.send(path)
