"""What clients hear through Ray is what they hear from a single server."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.cluster.load import ON_RAY, Begun, Reached
from tests.http.aio import run
from tests.live.raw import CHAT, STREAM, Json, Line, Reply, ask, chat, complete, judged
from welldone.check.reports import text
from welldone.check.run import check
from welldone.check.settings import CheckSettings, Timeouts

if TYPE_CHECKING:
    from tests.cluster.cluster import OnRay

pytestmark = ON_RAY

KEY, POOR = "wd-key-of-a-client-0123456789", "wd-key-of-a-poor-client-0123456789"
SAYS = "What is the capital of France? Answer in one short sentence."
BODY_LIMIT = 100_000
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
_CONFIG = """
[server]
api_key = "{key}"
body_limit = {body_limit}
[keys.poor]
key = "{poor}"
requests_per_minute = 1
[defaults]
threads = 1
[models.default]
file = "{default}"
ctx_size = 4096
[models.embedding]
file = "{embedding}"
[models.ideal]
command = {ideal}
[models.held]
command = {held}
[models.paced]
command = {paced}
[scale.front]
num_cpus = 0.25
[scale.engine]
num_cpus = 0
num_gpus = 0.5
[scale.engines.paced]
num_gpus = 0.5
min_replicas = 2
max_replicas = 2
sticky = "conversation"
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipe at which the engine `held` waits."""
    made = tmp_path_factory.mktemp("gate") / "gate"
    os.mkfifo(made)
    return made


@pytest.fixture(scope="module")
def cluster(on_ray: "OnRay", says_who: str, gate: Path, default_model: Path, tiny_embedding_model: Path) -> "OnRay":
    """A cluster with a key and five models."""
    text = _CONFIG.format(
        key=KEY,
        poor=POOR,
        body_limit=BODY_LIMIT,
        default=default_model,
        embedding=tiny_embedding_model,
        ideal=[sys.executable, "-m", "welldone", "mock", "--port", "{port}"],
        held=[sys.executable, str(Path(__file__).with_name("held.py")), str(gate), "{port}"],
        paced=says_who,
    )
    on_ray.deploy(text, key=KEY, model="default")
    return on_ray


# Answers of the default model.


@STREAM
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2},
        {"stop": ["Paris"]},
        {"logprobs": True, "top_logprobs": 2},
        {"tools": TOOLS, "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
    ],
    ids=lambda fields: next(iter(fields), "plain"),
)
def test_a_chat_is_right(cluster: "OnRay", fields: dict[str, Any], stream: bool) -> None:
    said = chat(cluster, SAYS, stream=stream, max_tokens=24, **fields)
    assert len(said.choices) == fields.get("n", 1)
    assert said.usage is not None
    for choice in said.choices:
        assert bool(choice.tokens) == ("logprobs" in fields)
        assert bool(choice.calls) == ("tools" in fields)


@STREAM
def test_a_completion_is_right(cluster: "OnRay", stream: bool) -> None:
    assert complete(cluster, "The capital of France is", stream=stream, max_tokens=8).text


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
@pytest.mark.parametrize(
    ("model", "probes"),
    [
        ("default", {"only": ("limits",)}),
        ("ideal", {"skip": ("count-tokens",)}),
    ],  # which the ideal server does not offer
    ids=["default", "ideal"],
)
def test_the_check_finds_nothing(cluster: "OnRay", endpoint: str, model: str, probes: dict[str, Any]) -> None:
    probes = probes if endpoint == "messages" else {"only": probes.get("only", ())}
    patience = Timeouts(reply_s=240.0)
    settings = CheckSettings(url=cluster.url, key=KEY, model=model, endpoint=endpoint, timeouts=patience, **probes)
    report = run(check(settings))
    assert not report.findings, "\n".join(text.render_terminal(report, lambda text, _: text, is_verbose=True))
    assert report.passed


def test_the_official_client_is_content(cluster: "OnRay") -> None:
    with openai.OpenAI(base_url=cluster.url, api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": "default", "max_tokens": 16, "messages": [{"role": "user", "content": SAYS}], "seed": 1}
        whole = client.chat.completions.create(**asked, temperature=0)
        chunks = list(client.chat.completions.create(**asked, temperature=0, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
        assert client.responses.create(model="default", input=SAYS, max_output_tokens=16).output_text
        assert client.embeddings.create(model="embedding", input="words").data[0].embedding
        assert {model.id for model in client.models.list()} == {"default", "embedding", "ideal", "held", "paced"}
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**asked, "model": "other"})


def test_the_first_word_is_at_the_client_before_the_engine_says_its_second(cluster: "OnRay", gate: Path) -> None:
    request = {"model": "held", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with Line(cluster, CHAT, request) as line:
        line.wait(b'"first"')
        assert b"second" not in line.heard
        gate.write_text("go on")
        assert judged(line.reply()).text == "first second"


# Errors.


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"model": "default"}, {}, 400),
        ({"model": "default", "messages": "x"}, {}, 400),
        ({"model": "other", "messages": [{"role": "user", "content": "Hi"}]}, {}, 404),
        ({"model": "default", "messages": []}, {"Authorization": "Bearer wrong"}, 401),
        ({"model": "default", "messages": [{"role": "user", "content": "x" * BODY_LIMIT}]}, {}, 413),
        ({"model": "default", "messages": []}, {"Host": "evil.example"}, 403),
    ],
    ids=["no messages", "messages that are none", "no such model", "a wrong key", "too long", "another host"],
)
def test_what_is_wrong_is_told_in_openais_words(
    cluster: "OnRay", body: Json, headers: dict[str, str], status: int
) -> None:
    reply = ask(cluster, CHAT, body, headers=headers)
    assert reply.status == status
    assert reply.error()["message"]


def test_who_asks_too_often_is_told_when_to_come_again(cluster: "OnRay") -> None:
    request: Json = {"model": "ideal", "messages": [{"role": "user", "content": "Hi"}]}
    first, second = (ask(cluster, CHAT, request, headers={"Authorization": f"Bearer {POOR}"}) for _ in range(2))
    assert first.status == 200
    assert second.status == 429
    assert second.error()["code"] == "rate_limit_exceeded"
    assert int(second.header("retry-after") or 0) > 0


def test_a_head_is_a_get_without_its_body(cluster: "OnRay") -> None:
    get, head = (ask(cluster, "/v1/models", method=method) for method in ("GET", "HEAD"))
    assert (get.status, head.status) == (200, 200)
    assert head.trace.body == b""
    assert head.header("content-length") == str(len(get.trace.body))


def test_options_are_told(cluster: "OnRay") -> None:
    reply = ask(cluster, CHAT, method="OPTIONS")
    assert reply.status == 405
    assert "POST" in (reply.header("allow") or "")


@pytest.mark.parametrize("name", ["date", "server", "x-request-id", "content-type"])
def test_a_header_is_said_once(cluster: "OnRay", name: str) -> None:
    assert len([one for one, _ in ask(cluster, "/v1/models").trace.headers or () if one == name]) == 1


# Where they go.


def test_a_conversation_stays_with_its_replica_and_others_go_elsewhere(cluster: "OnRay") -> None:
    def engine(says: str) -> int:
        return Begun(cluster, tokens=2, says=says, model="paced").outcome().engine

    conversations = [f"conversation {number}" for number in range(8)]
    first = [engine(says) for says in conversations]
    assert [engine(says) for says in conversations] == first
    assert len(set(first)) == 2


# Keys.


@pytest.mark.parametrize("key", [None, KEY, "wrong"], ids=["no key", "a client's key", "a wrong key"])
def test_an_engine_answers_only_the_fronts(cluster: "OnRay", key: str | None) -> None:
    assert _ask_engine(cluster, key).status == 401


def test_no_key_is_in_a_log(cluster: "OnRay") -> None:
    inner = cluster.place("engine-paced-5")["key"]
    assert _ask_engine(cluster, inner).status == 200
    assert ask(cluster, "/v1/models").status == 200
    keys = [key.encode() for key in (KEY, POOR, inner)]
    logs = list(cluster.logs())
    assert logs
    assert [file.name for file in logs if any(key in file.read_bytes() for key in keys)] == []


def _ask_engine(cluster: "OnRay", key: str | None) -> Reply:
    """What an engine says to who comes straight to its port."""
    return ask(Reached(cluster.place("engine-paced-5")["port"], key), "/v1/models")
