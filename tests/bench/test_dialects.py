"""The dialects other than chat: their requests, and a load test in each."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.check.serving import serving
from tests.http.aio import run
from welldone.bench.client import BenchUnreachableError
from welldone.bench.dialects import DIALECTS
from welldone.bench.report import BenchReport, StepResult
from welldone.bench.reports import BENCH_REPORT_FORMATS, data, text
from welldone.bench.run import BenchProgress, run_bench
from welldone.bench.settings import BenchmarkKind, BenchSettings, LengthSpec
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import error_reply

pytestmark = pytest.mark.tier3

Choose = Callable[[MockHttpRequest], MockReply]
SHORT = LengthSpec(num_tokens=5, min_tokens=5, max_tokens=5)
KEY = "sk-a-key-of-some-length"
OTHERS = ("responses", "messages")
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Again"},
]


def _settings(url: str, endpoint: str, **more: Any) -> BenchSettings:  # noqa: ANN401 - any setting
    usual: dict[str, Any] = {
        "model": "ideal",
        "kind": BenchmarkKind.CONCURRENCY,
        "levels": (2,),
        "duration_s": 0.3,
        "warmup_s": 0.1,
        "timeout_s": 30.0,
        "prompt": SHORT,
        "decode": SHORT,
    }
    return BenchSettings(url=url, endpoint=endpoint, **{**usual, **more})


def _bench(choose: Choose, endpoint: str, **more: Any) -> BenchReport:  # noqa: ANN401 - any setting
    async def work() -> BenchReport:
        async with serving(choose) as url:
            return await run_bench(_settings(url, endpoint, **more))

    return run(work())


def _last(report: BenchReport) -> StepResult:
    assert report.is_complete
    return report.steps[-1]


def _overheard(into: list[MockHttpRequest], choose: Choose) -> Choose:
    def answer(seen: MockHttpRequest) -> MockReply:
        into.append(seen)
        return choose(seen)

    return answer


# Requests.


def test_a_conversation_becomes_a_responses_request() -> None:
    body = DIALECTS["responses"].body({"model": "m"}, TALK, 9)
    said = {"type": "output_text", "text": "Hi.", "annotations": []}
    assert body == {
        "model": "m",
        "instructions": "Be short.",
        "input": [
            {"role": "user", "content": "Hello"},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said]},
            {"role": "user", "content": "Again"},
        ],
        "stream": True,
        "max_output_tokens": 9,
    }


def test_a_conversation_becomes_a_messages_request() -> None:
    body = DIALECTS["messages"].body({"model": "m"}, TALK, 9)
    assert body == {"model": "m", "system": "Be short.", "messages": TALK[1:], "stream": True, "max_tokens": 9}


@pytest.mark.parametrize("endpoint", OTHERS)
def test_without_a_system_message_the_field_is_omitted(endpoint: str) -> None:
    body = DIALECTS[endpoint].body({}, TALK[1:2], None)
    assert body.keys() == {"stream", {"responses": "input", "messages": "messages"}[endpoint]}


@pytest.mark.parametrize(
    ("endpoint", "path", "wanted"),
    [("responses", "/v1/responses", {"store": False, "temperature": 0.0}), ("messages", "/v1/messages", {})],
)
def test_every_request_has_the_path_and_fields_of_its_dialect(endpoint: str, path: str, wanted: dict[str, Any]) -> None:
    seen: list[MockHttpRequest] = []
    _bench(_overheard(seen, ReferenceServer().answer), endpoint, extra={"top_p": 0.5})
    posted = [one for one in seen if one.method == "POST"]
    assert {one.path for one in posted} == {path}
    assert all(json.loads(one.body).items() >= {**wanted, "top_p": 0.5, "stream": True}.items() for one in posted)


@pytest.mark.parametrize("key", [None, KEY])
def test_messages_have_a_version_and_the_key_in_both_headers(key: str | None) -> None:
    seen: list[MockHttpRequest] = []
    _bench(_overheard(seen, ReferenceServer(key=key).answer), "messages", key=key, model=None)
    assert {one.headers["anthropic-version"] for one in seen} == {"2023-06-01"}
    assert {one.headers.get("x-api-key") for one in seen} == {key}
    assert {one.headers.get("authorization") for one in seen} == {key and f"Bearer {key}"}


def test_a_given_header_replaces_that_of_the_dialect() -> None:
    seen: list[MockHttpRequest] = []
    _bench(_overheard(seen, ReferenceServer().answer), "messages", headers=(("Anthropic-Version", "2024-01-01"),))
    assert {one.headers["anthropic-version"] for one in seen} == {"2024-01-01"}


def test_another_host_does_not_get_the_key() -> None:
    seen: list[MockHttpRequest] = []
    ideal = ReferenceServer()

    async def work(**more: Any) -> None:  # noqa: ANN401 - any setting
        seen.clear()
        async with serving(ideal.answer) as first, serving(_overheard(seen, ideal.answer)) as second:
            other = second.replace("127.0.0.1", "localhost")
            await run_bench(_settings(first, "messages", against=other, key=KEY, levels=(1,), duration_s=0.05, **more))

    run(work())
    assert {one.headers.get("x-api-key") for one in seen} == {None}
    run(work(against_key="its-own-key"))
    assert {one.headers.get("x-api-key") for one in seen} == {"its-own-key"}


def test_fields_that_the_server_rejects_are_omitted() -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        return error_reply(422, "no such member") if "store" in seen.body else ideal.answer(seen)

    assert _last(_bench(choose, "responses")).ok > 0


# Streams.


@pytest.mark.parametrize("endpoint", OTHERS)
def test_every_answer_of_a_correct_server_is_ok_and_counted(endpoint: str) -> None:
    report = _bench(ReferenceServer().answer, endpoint)
    step = _last(report)
    assert step.outcomes == {"ok": step.requests}
    assert (step.invalid_streams, step.tokens_by, step.id) == (0, "usage", "concurrency@2")
    assert step.total_tokens == sum(len(record.times) for record in step.records)
    assert {"ttft", "itl", "e2e", "head", "role"} <= step.times.keys()
    assert all(record.times and record.content_s is not None for record in step.records)


@pytest.mark.parametrize("endpoint", OTHERS)
def test_a_conversation_continues_with_the_answers_of_the_server(endpoint: str) -> None:
    seen: list[MockHttpRequest] = []
    step = _last(_bench(_overheard(seen, ReferenceServer().answer), endpoint, profile="chat", levels=(1,), prompt=None))
    assert step.outcomes == {"ok": step.requests}
    bodies = [json.loads(one.body) for one in seen if one.method == "POST"]
    talks = [body.get("input") or body.get("messages") for body in bodies]
    assert any(item.get("role") == "assistant" for talk in talks for item in talk)
    assert all(body.get("instructions") or body.get("system") for body in bodies[1:])


@pytest.mark.parametrize("endpoint", OTHERS)
def test_a_sweep_works(endpoint: str) -> None:
    ideal = ReferenceServer(gap_s=0.001)
    report = _bench(ideal.answer, endpoint, kind=BenchmarkKind.SWEEP, levels=(), max_vus=2, num_rates=1)
    assert [step.id for step in report.steps][:2] == ["warmup", "throughput"]
    assert all(step.outcomes == {"ok": step.requests} for step in report.steps)


@pytest.mark.parametrize("endpoint", OTHERS)
def test_two_servers_are_measured_in_alternation_in_the_same_dialect(endpoint: str) -> None:
    seen: list[MockHttpRequest] = []

    async def work() -> BenchReport:
        ideal = ReferenceServer()
        async with serving(ideal.answer) as first, serving(_overheard(seen, ideal.answer)) as second:
            return await run_bench(_settings(first, endpoint, against=second, levels=(1,)))

    report = run(work())
    assert [step.target for step in report.steps] == [report.url, report.against] * 2
    assert all(step.outcomes == {"ok": step.requests} for step in report.steps)
    assert {one.path for one in seen if one.method == "POST"} == {f"/v1/{endpoint}"}


@pytest.mark.parametrize("endpoint", OTHERS)
def test_streams_that_are_cut_off_are_counted_separately(endpoint: str) -> None:
    """The probe and the warm-up are answered correctly."""
    ideal, posts = ReferenceServer(), count()

    def choose(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        is_right = seen.method != "POST" or (number := next(posts)) < 2 or number % 2
        return reply if is_right else msgspec.structs.replace(reply, pieces=reply.pieces[: len(reply.pieces) // 2])

    step = _last(_bench(choose, endpoint, levels=(1,)))
    assert step.outcomes.keys() == {"ok", "cut"}
    assert step.times["e2e"].count == step.ok


@pytest.mark.parametrize("endpoint", OTHERS)
def test_a_server_without_the_endpoint_is_one_line(endpoint: str) -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        return error_reply(404, "no such path") if seen.path.endswith(endpoint) else ideal.answer(seen)

    with pytest.raises(BenchUnreachableError, match=rf"does not answer /{endpoint} for 'ideal' \(404: .*no such path"):
        _bench(choose, endpoint)


# Reports.


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_reports_name_the_endpoint(endpoint: str) -> None:
    report = _bench(ReferenceServer().answer, endpoint, levels=(1,), duration_s=0.05)
    assert json.loads(data.render_json(report))["endpoint"] == endpoint
    assert data.parse_report(data.render_json(report)).endpoint == endpoint
    assert text.report_lines(report)[0].endswith(f"/v1, endpoint {endpoint}")
    assert f"endpoint {endpoint}" in BENCH_REPORT_FORMATS[".html"](report)


def test_the_live_view_shows_the_endpoint() -> None:
    async def work() -> str:
        watch = BenchProgress()
        async with serving(ReferenceServer().answer) as url:
            await run_bench(
                _settings(url, "messages", levels=(1,), duration_s=0.05), progress=watch, stop=asyncio.Event()
            )
        return watch.title

    assert run(work()).endswith("/v1, messages")
