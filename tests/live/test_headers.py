"""Response headers, health endpoints and metrics."""

import re
import time

import pytest

from tests.support.raw import CHAT, LIMIT_S, STREAM, Json, chat, fetch
from tests.support.server import Running

HELLO: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@STREAM
def test_an_answer_has_the_headers_of_openai(tiny_server: Running, stream: bool) -> None:
    reply = fetch(tiny_server, CHAT, HELLO | {"stream": stream})
    assert re.fullmatch(r"req_[0-9a-f]{32}", reply.header("x-request-id") or "")
    assert (reply.header("openai-processing-ms") or "").isdigit()
    assert reply.trace.media_type == ("text/event-stream" if stream else "application/json")
    assert reply.header("x-content-type-options") == "nosniff"
    assert reply.header("server") == "welldone"
    assert reply.header("x-ratelimit-limit-requests") is None
    assert reply.header("access-control-allow-origin") is None


def test_the_headers_of_a_stream_prevent_caching_and_buffering(tiny_server: Running) -> None:
    reply = fetch(tiny_server, CHAT, HELLO | {"stream": True})
    assert reply.header("cache-control") == "no-cache, no-transform"
    assert reply.header("x-accel-buffering") == "no"
    assert reply.header("transfer-encoding") == "chunked"


@STREAM
@pytest.mark.parametrize("name", ["x-request-id", "x-client-request-id"])
def test_the_request_id_of_the_client_is_returned(tiny_server: Running, stream: bool, name: str) -> None:
    reply = fetch(tiny_server, CHAT, HELLO | {"stream": stream}, headers={name: "my-own_id-1"})
    assert reply.header("x-request-id") == "my-own_id-1"


@pytest.mark.parametrize("id", ["a b", "x" * 129, "a\tb", "<script>"])
def test_an_invalid_request_id_is_replaced(tiny_server: Running, id: str) -> None:
    assert (fetch(tiny_server, CHAT, HELLO, headers={"x-request-id": id}).header("x-request-id") or "")[:4] == "req_"


@STREAM
def test_an_error_has_the_same_headers(tiny_server: Running, stream: bool) -> None:
    reply = fetch(tiny_server, CHAT, HELLO | {"stream": stream, "temperature": -1})
    assert reply.status == 400
    assert reply.header("x-request-id")
    assert (reply.header("openai-processing-ms") or "").isdigit()
    assert reply.error()["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/livez", "/readyz", "/v1/readyz"])
def test_health_endpoints_report_ok(tiny_server: Running, path: str) -> None:
    assert fetch(tiny_server, path).ok() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
def test_health_needs_no_key(tiny_server: Running, path: str) -> None:
    assert fetch(tiny_server, path, headers={"Authorization": ""}).ok() == {"status": "ok"}


def metrics(server: Running) -> dict[str, float]:
    """All metrics, by name with labels."""
    reply = fetch(server, "/metrics")
    assert reply.status == 200
    assert reply.trace.media_type == "text/plain"
    lines = (line for line in reply.trace.body.decode().splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def total(values: dict[str, float], name: str) -> float:
    """The sum of a metric over all labels."""
    return sum(value for key, value in values.items() if key.partition("{")[0] == name)


def test_a_slot_is_released_after_an_answer(tiny_server: Running) -> None:
    chat(tiny_server, "Hello", stream=True, max_tokens=5)
    deadline = time.monotonic() + LIMIT_S
    while total(metrics(tiny_server), "llamacpp:requests_processing"):
        assert time.monotonic() < deadline


def test_answers_are_counted_in_the_metrics_of_llama_cpp(tiny_server: Running) -> None:
    before = metrics(tiny_server)
    answer = chat(tiny_server, "Hello", stream=True, max_tokens=5)
    after = metrics(tiny_server)

    def increase(name: str) -> float:
        return total(after, name) - total(before, name)

    assert increase("welldone_prompt_tokens_total") == answer.counts[0]
    assert 1 <= increase("llamacpp:prompt_tokens_total") <= answer.counts[0]  # cached prompt tokens do not count
    assert increase("llamacpp:tokens_predicted_total") == 5
    assert total(after, "llamacpp:requests_deferred") == 0
    assert increase("welldone_time_to_first_token_seconds_count") == 1
