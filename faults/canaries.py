"""Searches for planted keys in logs, metrics, traces, error messages and upstream requests."""

from itertools import product
from pathlib import Path
from typing import NamedTuple

from faults.case import Case, CaseContext, Figure, Outcome
from faults.dialects import MESSAGES, OLLAMA_CHAT, RESPONSES
from faults.planting import CLIENT, HEADER, KEYS, NAMED, OURS, PROMPT, STRANGER, THEIRS, Scene, playing, provoke
from tests.support.faults import chat_once, engine_of, small_server
from tests.support.raw import CHAT, Json, fetch

SHOWN = ("/metrics", "/page/api/state", "/v1/models", "/openapi.json")
"""Paths on which the server describes itself to clients with a key."""
HUB = "hf-canary-of-the-hub-1a2b3c4d"
CLOUD = "sk-canary-of-another-program-5e6f7a8b"
FORMATS = {"text": "principal=ci", "json": '"principal":"ci"'}
"""Log formats, and how each prints the key `ci`."""
AROUND = 40
"""Characters of evidence before a key that was found; the key itself is named by its first letters."""

MORE = """
[upstreams.down]
url = "http://127.0.0.1:9/v1"
key = "env:KEY_a"
models = ["down"]
[upstreams.plain]
url = "https://127.0.0.1:9/v1"
key = "env:KEY_b"
models = ["plain"]
"""
"""Unreachable upstreams: errors about them may not contain what would have been sent."""


class Artifact(NamedTuple):
    """A written or sent text, and the keys that may not be in it."""

    name: str
    text: str
    secrets: tuple[str, ...]

    @property
    def hits(self) -> list[str]:
        """Each key in the text, with the text before it."""
        found = [(one, self.text.find(one)) for one in self.secrets]
        return [
            f"{one[:16]}… is in {self.name}, after {self.text[max(0, at - AROUND) : at]!r}"
            for one, at in found
            if at >= 0
        ]


def provoke_more(scene: Scene) -> None:
    """Send keys through the other dialects, the web page, stored responses and names of all kinds."""
    message: Json = {"role": "user", "content": PROMPT}
    for model in ("hello", "tell-401", "tell-500", "tell-event", "cut", "bad-json", "html", "down", "plain"):
        for stream in (True, False):
            fields: Json = {"model": model, "stream": stream}
            scene.send(RESPONSES, {**fields, "input": PROMPT, "metadata": {"key": CLIENT}, "api_key": CLIENT})
            scene.send(
                MESSAGES, {**fields, "messages": [message], "max_tokens": 9}, **{"anthropic-version": "2023-06-01"}
            )
            scene.send(OLLAMA_CHAT, {**fields, "messages": [message]}, Cookie=CLIENT)
            scene.send(CHAT, {**fields, "messages": [message]}, **{"x-request-id": CLIENT, "traceparent": CLIENT})
    response_id = scene.send(RESPONSES, {"model": "hello", "input": PROMPT}).ok()["id"]
    for path in (f"{RESPONSES}/{response_id}", f"{RESPONSES}/{response_id}/input_items", f"{RESPONSES}/{CLIENT}"):
        scene.send(path)
    for path in (*SHOWN, "/page/api/recordings/x", f"/v1/models/{CLIENT}", f"/{CLIENT}"):
        scene.send(path)
        scene.send(path, key=NAMED)
        scene.send(path, key=STRANGER)
    for body in ({"model": 1}, {"model": "hello", "messages": CLIENT}, {"model": "hello", CLIENT: 1}):
        scene.send(CHAT, body)
    scene.send("/models/load", {"model": CLIENT})
    for model in (CLIENT, NAMED, *KEYS.values()):  # these replies echo the model name: they are not recorded
        fetch(scene.server, CHAT, {"model": model, "messages": [message]})
    scene.send("/page/api/lint", {"capture": f"data: {CLIENT}\n\n"})


def perform(scene: Scene) -> list[Artifact]:
    """Send all requests; return everything that was written and sent."""
    every = (*THEIRS, *OURS)
    provoke(scene)
    posts = {name: len(one.posts()) for name, one in scene.upstreams.items()}
    first = len(scene.received)
    provoke_more(scene)
    last = len(scene.received)
    for path, key in product(SHOWN, (CLIENT, NAMED)):
        scene.send(path, key=key)
    scene.server.end()
    replies = [received.decode(errors="replace") for received in scene.received]
    found = [Artifact("the log", scene.server.stdout.join() + scene.server.log.join(), (*every, PROMPT))]
    found += [Artifact("a reply", text, every) for text in (*replies[:first], *replies[last:])]
    found += [Artifact("a reply", text, OURS) for text in replies[first:last]]  # some echo the request
    for name, one in scene.upstreams.items():
        others = tuple(key for other, key in KEYS.items() if other != name)
        found += [  # later requests have keys in fields that are forwarded
            Artifact(
                f"a request to upstream {name}",
                str(seen if index < posts[name] else seen.headers),
                (*THEIRS, *others),
            )
            for index, seen in enumerate(one.posts())
        ]
    found += [Artifact("a recording", file.name + file.read_text(), every) for file in scene.folder.iterdir()]
    return found


def strangers(scene: Scene) -> list[str]:
    """Requests to upstreams without the upstream's own key."""
    found: list[str] = []
    for name, one in scene.upstreams.items():
        own = {"authorization": f"Bearer {KEYS[name]}", "x-extra": f"Bearer {HEADER}"}
        posts = one.posts()
        found += [] if posts else [f"upstream {name} was not asked"]
        found += [
            f"upstream {name} was asked without its own {header}"
            for seen in posts
            for header, value in own.items()
            if seen.headers.get(header) != value
        ]
    return found


def canaries(context: CaseContext) -> Outcome:
    """Provoke errors of all kinds and search all output."""
    hits: list[str] = []
    problems: list[str] = []
    count = looked = 0
    for log_format, principal in FORMATS.items():
        context.note(f"with a log of {log_format}")
        folder = context.folder / log_format
        folder.mkdir()
        with playing(folder, log_format, more=MORE) as scene:
            found = perform(scene)
            problems += strangers(scene)
            if principal not in scene.server.log.join():
                problems.append(f"the log has no {principal}")
        count += len(scene.received)
        looked += len(found)
        hits += [hit for artifact in found for hit in artifact.hits]
    return Outcome(
        count=count,
        happened=f"{len(hits)} keys were found in {looked:,} logs, replies, recordings and requests to upstreams",
        figures=(
            Figure("keys leaked", len(hits), most=0),
            Figure("outputs searched", looked, least=count),
        ),
        problems=(*hits, *problems),
    )


def engine_canaries(context: CaseContext) -> Outcome:
    """The process of a local model receives no key."""
    environment = {"WELLDONE_API_KEY": NAMED, "HF_TOKEN": HUB, "OPENAI_API_KEY": CLOUD}
    with small_server(context.model, "--log-level", "debug", "-v", key=CLIENT, environment=environment) as server:
        chat_once(server)
        statuses = [fetch(server, path).status for path in SHOWN]
        with engine_of(server) as engine:
            texts = [Path(f"/proc/{engine.pid}/{name}").read_text() for name in ("cmdline", "environ")]
        server.end()
        written = server.stdout.join() + server.log.join()
    every = (CLIENT, NAMED, HUB, CLOUD)
    found = [
        Artifact(name, text, every) for name, text in zip(("its arguments", "its environment"), texts, strict=True)
    ]
    hits = [hit for artifact in [*found, Artifact("the log", written, every)] for hit in artifact.hits]
    return Outcome(
        count=1 + len(statuses),
        happened=f"{len(hits)} keys were found in the engine's arguments and environment and in the log",
        figures=(Figure("keys leaked to an engine", len(hits), most=0),),
        problems=tuple(hits),
    )


CASES = (
    Case(
        "canaries", "keys planted in settings, headers, addresses and bodies, with upstreams that echo them", canaries
    ),
    Case("engine-canaries", "keys in the environment of a server with a local model", engine_canaries),
)
