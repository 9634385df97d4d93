"""A short load test of the server has no errors, counted by `welldone bench` and as inference-benchmarker counts."""

import asyncio
import json

import pytest

from tests.http.aio import run
from tests.support.server import Running
from welldone.bench.run import run_bench
from welldone.bench.settings import BenchmarkKind, BenchSettings, LengthSpec
from welldone.http import recording_client
from welldone.http.address import parse_url

pytestmark = pytest.mark.tier3

SHORT = LengthSpec(num_tokens=20, min_tokens=10, max_tokens=30, variance=5)
FEW = LengthSpec(num_tokens=8, min_tokens=4, max_tokens=12, variance=2)


@pytest.mark.parametrize("kind", [BenchmarkKind.CONCURRENCY, BenchmarkKind.RATE])
def test_a_load_test_has_no_errors(server: Running, kind: BenchmarkKind) -> None:
    report = run(
        run_bench(
            BenchSettings(
                url=server.url,
                key=server.key,
                model=server.model,
                kind=kind,
                levels=(1, 4) if kind is BenchmarkKind.CONCURRENCY else (),
                rates=(2.0,) if kind is BenchmarkKind.RATE else (),
                duration_s=1.5,
                warmup_s=0.5,
                grace_s=100.0,
                prompt=SHORT,
                decode=FEW,
                tokenizer="server",
            )
        )
    )
    for step in report.steps:
        assert step.outcomes == {"ok": step.requests}
        assert (step.invalid_streams, step.tokens_by) == (0, "usage")
        assert step.decoded_tokens is not None
        assert 1 <= step.decoded_tokens <= FEW.max_tokens
    assert report.tokenizer == "the server's usage numbers, or else the server's /tokenize, word by word"


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_a_load_test_in_other_dialects_has_no_errors(server: Running, endpoint: str) -> None:
    report = run(
        run_bench(
            BenchSettings(
                url=server.url,
                endpoint=endpoint,
                key=server.key,
                model=server.model,
                kind=BenchmarkKind.CONCURRENCY,
                levels=(2,),
                duration_s=1.0,
                warmup_s=0.5,
                grace_s=100.0,
                prompt=SHORT,
                decode=FEW,
            )
        )
    )
    for step in report.steps:
        assert step.outcomes == {"ok": step.requests}
        assert (step.invalid_streams, step.tokens_by) == (0, "usage")
        assert step.decoded_tokens is not None
        assert 1 <= step.decoded_tokens <= FEW.max_tokens


def inference_benchmarker_outcome(content_type: str, body: bytes) -> str:
    """The outcome that inference-benchmarker would count for a stream: `ok`, or its error."""
    if content_type.partition(";")[0] != "text/event-stream":
        return "content type"
    tokens, has_stopped = 0, False
    for event in body.decode().split("\n\n"):
        data = event.removeprefix("data: ")
        if data in ("", "\n") or event.startswith(":"):
            continue
        if data == "[DONE]":
            has_stopped = True
            break
        if data.startswith('{"error":'):
            return "error"
        choice = json.loads(data)["choices"][0]  # as inference-benchmarker does, without a check
        tokens += bool(choice["delta"].get("content"))
    return "ok" if tokens and has_stopped else "Connection closed before completion"


def test_inference_benchmarker_counts_no_error(server: Running) -> None:
    request = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Count from 1 to 20."}],
        "max_tokens": 8,
        "stream": True,
        "stop": None,
        "temperature": 0.0,
    }

    async def outcomes() -> list[str]:
        address = parse_url(server.url, key=server.key)
        body = json.dumps(request).encode()
        replies = await asyncio.gather(
            *(
                recording_client.record_response(address, "POST", "/chat/completions", body=body, idle_timeout_s=100.0)
                for _ in range(8)
            )
        )
        return [inference_benchmarker_outcome(dict(one.headers)["Content-Type"], one.body) for one in replies]

    assert run(outcomes()) == ["ok"] * 8
