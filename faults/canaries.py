"""Keys planted wherever one can stand, and looked for wherever one may not show up."""

from itertools import product
from pathlib import Path
from typing import NamedTuple

from faults.case import Case, Figure, Outcome, Stage
from faults.dialects import MESSAGES, OLLAMA_CHAT, RESPONSES
from faults.planting import CLIENT, HEADER, KEYS, NAMED, OURS, PROMPT, STRANGER, THEIRS, Scene, playing, provoke
from tests.live.faults import answer, engine_of, small
from tests.live.raw import CHAT, Json, ask

SHOWN = ("/metrics", "/page/api/state", "/v1/models", "/openapi.json")
"""What a server says of itself, to everyone with a key."""
HUB = "hf-canary-of-the-hub-1a2b3c4d"
CLOUD = "sk-canary-of-another-program-5e6f7a8b"
FORMATS = {"text": "principal=ci", "json": '"principal":"ci"'}
"""The forms of a log, and how each names the key `ci`."""
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
"""Upstreams that cannot be reached: what is said of them may not hold what would have been said to them."""


class Place(NamedTuple):
    """Something that was written or said, and the keys that may not be in it."""

    name: str
    text: str
    secrets: tuple[str, ...]

    @property
    def hits(self) -> list[str]:
        """Each key that is there, with what stands before it."""
        found = [(one, self.text.find(one)) for one in self.secrets]
        return [
            f"{one[:16]}… is in {self.name}, after {self.text[max(0, at - AROUND) : at]!r}"
            for one, at in found
            if at >= 0
        ]


def provoke_more(scene: Scene) -> None:
    """The other dialects, the page, what is kept, and keys as names of all kinds."""
    message: Json = {"role": "user", "content": PROMPT}
    for model in ("hello", "tell-401", "tell-500", "tell-event", "cut", "bad-json", "html", "down", "plain"):
        for stream in (True, False):
            asked: Json = {"model": model, "stream": stream}
            scene.ask(RESPONSES, {**asked, "input": PROMPT, "metadata": {"key": CLIENT}, "api_key": CLIENT})
            scene.ask(
                MESSAGES, {**asked, "messages": [message], "max_tokens": 9}, **{"anthropic-version": "2023-06-01"}
            )
            scene.ask(OLLAMA_CHAT, {**asked, "messages": [message]}, Cookie=CLIENT)
            scene.ask(CHAT, {**asked, "messages": [message]}, **{"x-request-id": CLIENT, "traceparent": CLIENT})
    kept = scene.ask(RESPONSES, {"model": "hello", "input": PROMPT}).ok()["id"]
    for path in (f"{RESPONSES}/{kept}", f"{RESPONSES}/{kept}/input_items", f"{RESPONSES}/{CLIENT}"):
        scene.ask(path)
    for path in (*SHOWN, "/page/api/recordings/x", f"/v1/models/{CLIENT}", f"/{CLIENT}"):
        scene.ask(path)
        scene.ask(path, key=NAMED)
        scene.ask(path, key=STRANGER)
    for body in ({"model": 1}, {"model": "hello", "messages": CLIENT}, {"model": "hello", CLIENT: 1}):
        scene.ask(CHAT, body)
    scene.ask("/models/load", {"model": CLIENT})
    for model in (CLIENT, NAMED, *KEYS.values()):  # such a reply says again what it was asked for: it is not remembered
        ask(scene.server, CHAT, {"model": model, "messages": [message]})
    scene.ask("/page/api/lint", {"capture": f"data: {CLIENT}\n\n"})


def perform(scene: Scene) -> list[Place]:
    """All that can be asked; then all that was written and said of it."""
    every = (*THEIRS, *OURS)
    provoke(scene)
    posts = {name: len(one.posts()) for name, one in scene.upstreams.items()}
    first = len(scene.heard)
    provoke_more(scene)
    last = len(scene.heard)
    for path, key in product(SHOWN, (CLIENT, NAMED)):
        scene.ask(path, key=key)
    scene.server.end()
    said = [heard.decode(errors="replace") for heard in scene.heard]
    found = [Place("the log", scene.server.said.join() + scene.server.log.join(), (*every, PROMPT))]
    found += [Place("a reply", text, every) for text in (*said[:first], *said[last:])]
    found += [Place("a reply", text, OURS) for text in said[first:last]]  # some say again what the client said
    for name, one in scene.upstreams.items():
        others = tuple(key for other, key in KEYS.items() if other != name)
        found += [  # later ones have what a client put into fields that are passed on
            Place(
                f"a request to upstream {name}", str(seen if place < posts[name] else seen.headers), (*THEIRS, *others)
            )
            for place, seen in enumerate(one.posts())
        ]
    found += [Place("a recording", file.name + file.read_text(), every) for file in scene.folder.iterdir()]
    return found


def strangers(scene: Scene) -> list[str]:
    """What upstreams were asked without a key of their own."""
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


def canaries(stage: Stage) -> Outcome:
    """Provoke errors of all kinds, and look everywhere."""
    hits: list[str] = []
    troubles: list[str] = []
    count = looked = 0
    for log_format, principal in FORMATS.items():
        stage.note(f"with a log of {log_format}")
        folder = stage.folder / log_format
        folder.mkdir()
        with playing(folder, log_format, more=MORE) as scene:
            found = perform(scene)
            troubles += strangers(scene)
            if principal not in scene.server.log.join():
                troubles.append(f"the log has no {principal}")
        count += len(scene.heard)
        looked += len(found)
        hits += [hit for place in found for hit in place.hits]
    return Outcome(
        count=count,
        happened=f"{len(hits)} keys were found in {looked:,} logs, replies, recordings and requests to upstreams",
        figures=(
            Figure("keys that were found where they do not belong", len(hits), most=0),
            Figure("places that were looked at", looked, least=count),
        ),
        troubles=(*hits, *troubles),
    )


def engine_canaries(stage: Stage) -> Outcome:
    """What a local model's own process is told: nothing of any key."""
    environment = {"WELLDONE_API_KEY": NAMED, "HF_TOKEN": HUB, "OPENAI_API_KEY": CLOUD}
    with small(stage.model, "--log-level", "debug", "-v", key=CLIENT, environment=environment) as server:
        answer(server)
        statuses = [ask(server, path).status for path in SHOWN]
        with engine_of(server) as engine:
            told = [Path(f"/proc/{engine.pid}/{name}").read_text() for name in ("cmdline", "environ")]
        server.end()
        written = server.said.join() + server.log.join()
    every = (CLIENT, NAMED, HUB, CLOUD)
    found = [Place(name, text, every) for name, text in zip(("its arguments", "its environment"), told, strict=True)]
    hits = [hit for place in [*found, Place("the log", written, every)] for hit in place.hits]
    return Outcome(
        count=1 + len(statuses),
        happened=f"{len(hits)} keys were found in the engine's arguments and environment and in the log",
        figures=(Figure("keys that an engine was told", len(hits), most=0),),
        troubles=tuple(hits),
    )


CASES = (
    Case(
        "canaries", "keys planted in settings, headers, addresses and bodies, and upstreams that repeat them", canaries
    ),
    Case("engine-canaries", "keys in the environment of a server with a local model", engine_canaries),
)
