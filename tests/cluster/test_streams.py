"""Answers through Ray are the same as those of a single server."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.cluster.load import ON_RAY, PendingRequest, RemoteServer
from tests.http.aio import run
from tests.support.raw import CHAT, STREAM, Json, RawConnection, Reply, chat, complete, fetch, parse_valid
from welldone.check.reports import text
from welldone.check.run import check
from welldone.check.settings import CheckSettings, Timeouts

if TYPE_CHECKING:
    from tests.cluster.cluster import RayCluster

pytestmark = ON_RAY

KEY, LIMITED_KEY = "wd-key-of-a-client-0123456789", "wd-key-of-a-limited-client-0123456789"
PROMPT = "What is the capital of France? Answer in one short sentence."
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
[keys.limited]
key = "{limited}"
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
def release_pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The named pipe that releases the engine `held`."""
    created = tmp_path_factory.mktemp("gate") / "gate"
    os.mkfifo(created)
    return created


@pytest.fixture(scope="module")
def cluster(
    on_ray: "RayCluster", pid_engine: str, release_pipe: Path, default_model: Path, tiny_embedding_model: Path
) -> "RayCluster":
    """A cluster with keys and five models."""
    text = _CONFIG.format(
        key=KEY,
        limited=LIMITED_KEY,
        body_limit=BODY_LIMIT,
        default=default_model,
        embedding=tiny_embedding_model,
        ideal=[sys.executable, "-m", "welldone", "mock", "--port", "{port}"],
        held=[sys.executable, str(Path(__file__).with_name("blocking_engine.py")), str(release_pipe), "{port}"],
        paced=pid_engine,
    )
    on_ray.deploy(text, key=KEY, model="default")
    return on_ray


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
def test_a_chat_is_correct(cluster: "RayCluster", fields: dict[str, Any], stream: bool) -> None:
    answer = chat(cluster, PROMPT, stream=stream, max_tokens=24, **fields)
    assert len(answer.choices) == fields.get("n", 1)
    assert answer.usage is not None
    for choice in answer.choices:
        assert bool(choice.tokens) == ("logprobs" in fields)
        assert bool(choice.calls) == ("tools" in fields)


@STREAM
def test_a_completion_is_correct(cluster: "RayCluster", stream: bool) -> None:
    assert complete(cluster, "The capital of France is", stream=stream, max_tokens=8).text


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
@pytest.mark.parametrize(
    ("model", "probes"),
    [
        ("default", {"only": ("limits",)}),
        ("ideal", {"skip": ("count-tokens",)}),
    ],  # which the mock does not support behind the gateway
    ids=["default", "ideal"],
)
def test_the_check_finds_nothing(cluster: "RayCluster", endpoint: str, model: str, probes: dict[str, Any]) -> None:
    probes = probes if endpoint == "messages" else {"only": probes.get("only", ())}
    timeouts = Timeouts(reply_s=240.0)
    settings = CheckSettings(url=cluster.url, key=KEY, model=model, endpoint=endpoint, timeouts=timeouts, **probes)
    report = run(check(settings))
    assert not report.findings, "\n".join(text.render_terminal(report, lambda text, _: text, is_verbose=True))
    assert report.passed


def test_the_official_client_works(cluster: "RayCluster") -> None:
    with openai.OpenAI(base_url=cluster.url, api_key=KEY, max_retries=0) as client:
        arguments: Any = {
            "model": "default",
            "max_tokens": 16,
            "messages": [{"role": "user", "content": PROMPT}],
            "seed": 1,
        }
        buffered = client.chat.completions.create(**arguments, temperature=0)
        chunks = list(client.chat.completions.create(**arguments, temperature=0, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == buffered.choices[0].message.content
        assert client.responses.create(model="default", input=PROMPT, max_output_tokens=16).output_text
        assert client.embeddings.create(model="embedding", input="words").data[0].embedding
        assert {model.id for model in client.models.list()} == {"default", "embedding", "ideal", "held", "paced"}
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**arguments, "model": "other"})


def test_the_first_token_reaches_the_client_before_the_engine_sends_the_second(
    cluster: "RayCluster", release_pipe: Path
) -> None:
    request = {"model": "held", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with RawConnection(cluster, CHAT, request) as connection:
        connection.wait(b'"first"')
        assert b"second" not in connection.received
        release_pipe.write_text("continue")
        assert parse_valid(connection.reply()).text == "first second"


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
    ids=["no messages", "invalid messages", "unknown model", "wrong key", "too long", "wrong host"],
)
def test_errors_are_in_openais_format(cluster: "RayCluster", body: Json, headers: dict[str, str], status: int) -> None:
    reply = fetch(cluster, CHAT, body, headers=headers)
    assert reply.status == status
    assert reply.error()["message"]


def test_a_rate_limited_client_gets_429_with_retry_after(cluster: "RayCluster") -> None:
    request: Json = {"model": "ideal", "messages": [{"role": "user", "content": "Hi"}]}
    first, second = (
        fetch(cluster, CHAT, request, headers={"Authorization": f"Bearer {LIMITED_KEY}"}) for _ in range(2)
    )
    assert first.status == 200
    assert second.status == 429
    assert second.error()["code"] == "rate_limit_exceeded"
    assert int(second.header("retry-after") or 0) > 0


def test_head_is_get_without_a_body(cluster: "RayCluster") -> None:
    get, head = (fetch(cluster, "/v1/models", method=method) for method in ("GET", "HEAD"))
    assert (get.status, head.status) == (200, 200)
    assert head.trace.body == b""
    assert head.header("content-length") == str(len(get.trace.body))


def test_options_returns_the_allowed_methods(cluster: "RayCluster") -> None:
    reply = fetch(cluster, CHAT, method="OPTIONS")
    assert reply.status == 405
    assert "POST" in (reply.header("allow") or "")


@pytest.mark.parametrize("name", ["date", "server", "x-request-id", "content-type"])
def test_a_header_is_sent_once(cluster: "RayCluster", name: str) -> None:
    assert len([request for request, _ in fetch(cluster, "/v1/models").trace.headers or () if request == name]) == 1


def test_a_conversation_sticks_to_its_replica(cluster: "RayCluster") -> None:
    def engine(prompt: str) -> int:
        return PendingRequest(cluster, tokens=2, prompt=prompt, model="paced").outcome().engine

    conversations = [f"conversation {number}" for number in range(8)]
    first = [engine(prompt) for prompt in conversations]
    assert [engine(prompt) for prompt in conversations] == first
    assert len(set(first)) == 2


@pytest.mark.parametrize("key", [None, KEY, "wrong"], ids=["no key", "a client's key", "a wrong key"])
def test_an_engine_accepts_only_the_key_of_the_fronts(cluster: "RayCluster", key: str | None) -> None:
    assert _request_engine(cluster, key).status == 401


def test_no_key_is_in_the_logs(cluster: "RayCluster") -> None:
    engine_key = cluster.replica_metadata("engine-paced-5")["key"]
    assert _request_engine(cluster, engine_key).status == 200
    assert fetch(cluster, "/v1/models").status == 200
    keys = [key.encode() for key in (KEY, LIMITED_KEY, engine_key)]
    logs = list(cluster.logs())
    assert logs
    assert [file.name for file in logs if any(key in file.read_bytes() for key in keys)] == []


def _request_engine(cluster: "RayCluster", key: str | None) -> Reply:
    """Send a request directly to the port of an engine."""
    return fetch(RemoteServer(cluster.replica_metadata("engine-paced-5")["port"], key), "/v1/models")
