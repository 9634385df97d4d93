"""Ground truth: the report of a server with known answers, cuts and errors."""

import asyncio
import json
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.check.serving import serving
from tests.http.aio import run
from tests.table import table
from welldone.bench import run as bench_run
from welldone.bench.client import BenchUnreachableError
from welldone.bench.report import BenchReport, StepResult
from welldone.bench.run import BenchProgress, run_bench
from welldone.bench.settings import ArrivalProcess, BenchmarkKind, BenchSettings, LengthSpec
from welldone.bench.stats import parse_assertion, parse_goodput_bound
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, MockScript, json_reply
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.variants import FAULT_REPLIES, error_reply

Choose = Callable[[MockHttpRequest], MockReply]
SHORT = LengthSpec(num_tokens=5, min_tokens=5, max_tokens=5)
GAP_S = 0.004  # limits the CPU use of the loops
KEY = "sk-a-key-of-some-length"


def _settings(url: str, **more: Any) -> BenchSettings:  # noqa: ANN401 - any setting
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
    return BenchSettings(url=url, **{**usual, **more})


async def _bench(choose: Choose, **more: Any) -> BenchReport:  # noqa: ANN401 - any setting
    async with serving(choose) as url:
        return await run_bench(_settings(url, **more))


def _by_turns(*replies: MockReply | None) -> Choose:
    """Return a handler that sends these replies in turn, also to the probe; None is a correct answer."""
    ideal, turns, looks = ReferenceServer(gap_s=GAP_S), cycle(replies), count()

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method != "POST" or next(looks) == 0:
            return ideal.answer(seen)
        return next(turns) or ideal.answer(seen)

    return choose


def _last(report: BenchReport) -> StepResult:
    assert report.is_complete
    return report.steps[-1]


def test_every_answer_of_a_correct_server_is_ok_and_counted() -> None:
    step = _last(run(_bench(ReferenceServer(gap_s=GAP_S).answer)))
    assert step.outcomes == {"ok": step.requests}
    assert (step.id, step.is_open, step.max_vus, step.skipped, step.invalid_streams) == (
        "concurrency@2",
        False,
        2,
        0,
        0,
    )
    assert step.decoded_tokens == 5
    assert step.total_tokens == 5 * step.ok
    assert {"ttft", "itl", "e2e", "head", "role"} <= step.times.keys()
    assert all(record.times and record.content_s is not None for record in step.records)


@table(
    ("fault", "end", "why"),
    [
        ("cut", "cut", "the connection was lost before the reply was complete"),
        ("reset", "cut", "the connection was lost before the reply was complete"),
        ("no-finish", "ok", ""),
        ("error-event", "failed", "out of memory"),
        ("limited", "refused", "429: too many requests"),
        ("broken", "refused", "500: something broke"),
        ("html", "broken", "the reply is not a stream but text/html"),
        ("empty", "cut", "the stream ended without a finish_reason"),
    ],
)
def test_failures_are_counted_by_kind_and_never_averaged(fault: str, end: str, why: str) -> None:
    step = _last(run(_bench(_by_turns(None, FAULT_REPLIES[fault]), levels=(1,))))
    assert step.outcomes.keys() <= {"ok", end}
    assert end == "ok" or abs(step.outcomes[end] - step.requests / 2) <= 1
    assert set(step.reasons) <= {why} - {""}
    assert step.times["e2e"].count == step.ok


def test_a_hanging_answer_times_out() -> None:
    report = run(_bench(_by_turns(None, FAULT_REPLIES["hang"]), levels=(1,), warmup_s=0.0, timeout_s=0.05, grace_s=1.0))
    assert _last(report).outcomes["timed out"] > 0


def test_requests_in_flight_at_the_end_are_abandoned_and_counted() -> None:
    report = run(_bench(_by_turns(None, FAULT_REPLIES["hang"]), levels=(3,), warmup_s=0.0, grace_s=0.0))
    assert _last(report).outcomes["unfinished"] > 0


def test_arrivals_beyond_the_limit_are_skipped_and_counted() -> None:
    slow = ReferenceServer(gap_s=0.05)
    step = _last(run(_bench(slow.answer, kind=BenchmarkKind.RATE, levels=(), rates=(100.0,), max_vus=3)))
    assert step.skipped > 0
    assert step.due == step.skipped + step.requests
    assert step.is_open


@pytest.mark.tier3
@pytest.mark.parametrize("arrivals", ArrivalProcess)
def test_a_rate_sends_the_due_requests(arrivals: ArrivalProcess) -> None:
    report = run(
        _bench(
            ReferenceServer(gap_s=GAP_S).answer,
            kind=BenchmarkKind.RATE,
            levels=(),
            rates=(40.0, 80.0),
            arrivals=arrivals,
        )
    )
    slow, fast = report.steps[1:]
    assert (slow.id, fast.id) == (f"{arrivals}@40.00req/s", f"{arrivals}@80.00req/s")
    assert slow.due == slow.requests == slow.ok
    if arrivals is ArrivalProcess.CONSTANT:
        assert (slow.due, fast.due) == (12, 24)


@pytest.mark.tier3
def test_a_sweep_exceeds_the_maximum_throughput() -> None:
    report = run(
        _bench(ReferenceServer(gap_s=0.002).answer, kind=BenchmarkKind.SWEEP, levels=(), max_vus=4, num_rates=2)
    )
    names = [step.id for step in report.steps]
    found = report.steps[1].request_rate
    assert names[:2] == ["warmup", "throughput"]
    assert [step.rate for step in report.steps[2:]] == [pytest.approx(found * 0.6), pytest.approx(found * 1.2)]


def test_a_replay_keeps_the_times_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("10.0\n10.05\n10.2\n")
    step = _last(run(_bench(ReferenceServer(gap_s=GAP_S).answer, kind=BenchmarkKind.REPLAY, levels=(), replay=path)))
    assert [round(record.due_s, 3) for record in sorted(step.records, key=lambda one: one.due_s)] == [0.0, 0.05, 0.2]


def test_a_conversation_continues_with_the_answers_of_the_server() -> None:
    ideal, asked = ReferenceServer(), list[dict[str, Any]]()

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method == "POST":
            asked.append(json.loads(seen.body))
        return ideal.answer(seen)

    run(_bench(choose, profile="chat", levels=(1,), prompt=None, duration_s=0.5))
    roles = [[message["role"] for message in body["messages"]] for body in asked]
    assert any("assistant" in turn for turn in roles)
    assert all(turn[-1] == "user" for turn in roles)


def test_broken_rules_are_counted() -> None:
    step = _last(run(_bench(_by_turns(FAULT_REPLIES["no-done"]), levels=(1,))))
    assert step.invalid_streams == step.requests
    assert "end-done-sent" in step.rules


def test_a_server_without_usage_is_counted_by_chunks() -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if "stream_options" in seen.body:
            return error_reply(400, "no such member")
        return ideal.answer(seen)

    step = _last(run(_bench(choose)))
    assert (step.tokens_by, step.decoded_tokens) == ("chunks", 5)


def test_an_unreachable_server_is_one_line() -> None:
    async def port() -> int:
        async with await MockServer(MockScript()).listen() as server:
            return server.port

    with pytest.raises(BenchUnreachableError, match="no connection to the server; is the server running there"):
        run(run_bench(_settings(f"http://127.0.0.1:{run(port())}/v1")))


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda _: error_reply(401, "no key"), "does not answer /chat/completions for 'ideal' "),
        (
            lambda _: FAULT_REPLIES["html"],
            "completed no answer in the warm-up: the reply is not a stream but text/html",
        ),
        (_by_turns(error_reply(500, "broke")), "completed no answer in the warm-up: 500: broke"),
    ],
)
def test_a_server_that_gives_no_answer_is_one_line(choose: Choose, message: str) -> None:
    with pytest.raises(BenchUnreachableError, match=message):
        run(_bench(choose))


def test_stopping_gives_the_report_so_far() -> None:
    async def work() -> BenchReport:
        stop, watch, ideal = asyncio.Event(), BenchProgress(), ReferenceServer()
        seen_posts = count()

        def choose(seen: MockHttpRequest) -> MockReply:
            if seen.method == "POST" and next(seen_posts) == 40:
                stop.set()
            return ideal.answer(seen)

        async with serving(choose) as url:
            settings = _settings(url, levels=(1, 2, 3), duration_s=600.0, warmup_s=0.01)
            return await run_bench(settings, stop=stop, progress=watch)

    report = run(work())
    assert (report.is_complete, report.incomplete_reason) == (False, "it was stopped")
    assert report.steps[-1].ok > 10
    assert report.steps[-1].seconds < 600


def test_the_report_of_a_server_that_dies_is_correct() -> None:
    async def work() -> BenchReport:
        posts, ideal = count(), ReferenceServer()
        died = asyncio.Event()
        server = MockServer(MockScript(), lambda seen: answer(seen), handles_all=True)

        def answer(seen: MockHttpRequest) -> MockReply:
            if seen.method == "POST" and next(posts) == 30:
                died.set()
            return ideal.answer(seen)

        await server.listen()
        url = f"http://127.0.0.1:{server.port}/v1"

        async def die() -> None:
            await died.wait()
            await server.close()

        dying = asyncio.create_task(die())
        report = await run_bench(_settings(url, levels=(2,), duration_s=0.6, warmup_s=0.01))
        await dying
        return report

    step = _last(run(work()))
    assert step.ok > 0
    assert step.outcomes.keys() - {"ok"} <= {"unreachable", "cut"}
    assert step.outcomes["unreachable"] > 0


@pytest.mark.tier3
def test_two_servers_are_measured_in_alternation_and_compared() -> None:
    async def work() -> BenchReport:
        async with serving(ReferenceServer().answer) as first, serving(ReferenceServer(gap_s=0.005).answer) as second:
            return await run_bench(_settings(first, against=second, levels=(1,), duration_s=4.0))

    report = run(work())
    assert [step.id for step in report.steps] == ["warmup", "warmup", "concurrency@1", "concurrency@1"]
    assert report.steps[-1].target == report.against
    found = next(compared for compared in report.comparisons if compared.metric == "concurrency@1 e2e.mean")
    assert found.low <= found.ratio <= found.high < 1


def test_limits_and_assertions_are_checked() -> None:
    report = run(
        _bench(
            ReferenceServer().answer,
            goodput=(parse_goodput_bound("ttft:60000"), parse_goodput_bound("e2e:60000")),
            assertions=(parse_assertion("e2e.mean<60s"), parse_assertion("token_rate>1000000")),
        )
    )
    assert _last(report).good == _last(report).ok
    assert [checked.passed for checked in report.assertion_results] == [True, False]


def test_no_secret_is_in_the_report() -> None:
    report = run(_bench(ReferenceServer(key=KEY).answer, key=KEY, headers=(("X-Token", "another-secret"),)))
    text = msgspec.json.encode(msgspec.structs.replace(report, steps=())).decode()
    assert KEY not in text
    assert "another-secret" not in text


@pytest.mark.tier3
def test_the_same_seed_gives_the_same_prompts() -> None:
    def asked(seed: int) -> list[str]:
        bodies: list[str] = []
        ideal = ReferenceServer()

        def choose(seen: MockHttpRequest) -> MockReply:
            if seen.method == "POST":
                bodies.append(seen.body)
            return ideal.answer(seen)

        run(_bench(choose, levels=(1,), seed=seed))
        return bodies[:5]

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)


# Results that must not mislead.


def test_a_replay_ends_with_its_last_answer_and_not_with_the_duration(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("0\n0\n0.05\n")
    step = _last(
        run(
            _bench(
                ReferenceServer(gap_s=0.01).answer, kind=BenchmarkKind.REPLAY, levels=(), replay=path, duration_s=600.0
            )
        )
    )
    assert max(record.ended_s for record in step.records) <= step.seconds < 300
    assert step.request_rate * step.seconds == pytest.approx(3)
    assert step.token_rate * step.seconds == pytest.approx(15)


@pytest.mark.tier3
def test_a_replay_on_two_servers_is_complete_on_both(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("0\n0.1\n0.3\n")

    async def work() -> BenchReport:
        async with serving(ReferenceServer().answer) as first, serving(ReferenceServer().answer) as second:
            return await run_bench(_settings(first, against=second, kind=BenchmarkKind.REPLAY, levels=(), replay=path))

    assert [step.ok for step in run(work()).steps[2:]] == [3, 3]


def test_an_invalid_replay_file_is_reported_before_any_request(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.txt cannot be read"):
        run(run_bench(_settings("http://127.0.0.1:9/v1", kind=BenchmarkKind.REPLAY, replay=tmp_path / "none.txt")))


@pytest.mark.tier3
def test_rounds_count_only_what_arrived_within_them() -> None:
    """Answers take longer than a round: their rest arrives during the next round and does not count."""

    async def work() -> BenchReport:
        slow = ReferenceServer(gap_s=0.1)
        async with serving(slow.answer) as first, serving(slow.answer) as second:
            return await run_bench(_settings(first, against=second, levels=(1,), duration_s=0.8, warmup_s=0.0))

    for step in run(work()).steps:
        assert step.ok == 4  # an answer of about half a second in each round of 0.2 seconds
        shares = [(0.2 - record.sent_s % 0.2) / (record.ended_s - record.sent_s) for record in step.records]
        assert step.request_rate * step.seconds == pytest.approx(sum(shares))
        assert step.token_rate * step.seconds < step.total_tokens / 2


def test_a_second_server_that_gives_no_answer_is_named() -> None:
    async def work() -> None:
        async with serving(ReferenceServer().answer) as first, serving(_by_turns(error_reply(500, "broke"))) as second:
            with pytest.raises(BenchUnreachableError, match=f"{second} completed no answer in the warm-up: 500: broke"):
                await run_bench(_settings(first, against=second))

    run(work())


@pytest.mark.tier3
def test_an_answer_longer_than_the_warm_up_gives_a_hint() -> None:
    with pytest.raises(BenchUnreachableError, match=r"it was still in flight after 0\.01 s; try a longer --grace"):
        run(_bench(ReferenceServer(gap_s=1.0).answer, warmup_s=0.01, grace_s=0.0))


def test_without_a_successful_answer_there_is_no_sweep() -> None:
    warm, posts = ReferenceServer(), count()

    def choose(seen: MockHttpRequest) -> MockReply:
        is_warm = seen.method != "POST" or next(posts) < 2
        return warm.answer(seen) if is_warm else error_reply(500, "broke")

    report = run(_bench(choose, kind=BenchmarkKind.SWEEP, levels=(), max_vus=2, warmup_s=0.001))
    assert [step.id for step in report.steps] == ["warmup", "throughput"]
    assert (report.is_complete, report.incomplete_reason[:42]) == (False, "no request of the throughput step succeede")


@pytest.mark.parametrize("status", [400, 422])
def test_stream_options_are_omitted_if_the_server_rejects_them(status: int) -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        return error_reply(status, "no such member") if "stream_options" in seen.body else ideal.answer(seen)

    assert _last(run(_bench(choose))).tokens_by == "chunks"


@pytest.mark.tier3
def test_missing_usage_is_not_named_as_the_source() -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method == "POST":
            body = json.loads(seen.body)
            body.pop("stream_options")
            seen = msgspec.structs.replace(seen, body=json.dumps(body))
        return ideal.answer(seen)

    step = _last(run(_bench(choose)))
    assert (step.tokens_by, step.decoded_tokens) == ("chunks", 5)


@pytest.mark.parametrize(
    ("path", "reply", "levels"),
    [
        ("/props", json_reply({"total_slots": 3}), [1, 3]),
        ("/props", json_reply({"total_slots": 1}), [1]),
        ("/props", json_reply({"total_slots": 10**9}), [1, 2]),
        ("/metrics", json_reply('welldone_slots{model="ideal"} 3'), [1, 2]),  # no line of its own
        ("/nothing", json_reply({}), [1, 2]),
    ],
)
def test_a_quick_run_has_as_many_users_as_the_server_has_slots(path: str, reply: MockReply, levels: list[int]) -> None:
    ideal = ReferenceServer(gap_s=GAP_S)

    def choose(seen: MockHttpRequest) -> MockReply:
        return reply if seen.path == path else ideal.answer(seen)

    report = run(_bench(choose, kind=BenchmarkKind.QUICK, levels=(1, 2), duration_s=0.1))
    assert [step.id for step in report.steps if step.id != "warmup"] == [f"concurrency@{users}" for users in levels]


@pytest.mark.tier3
def test_the_model_of_the_tokenizer_is_used_if_the_server_lists_it() -> None:
    report = run(_bench(ReferenceServer(models=("other", "ideal")).answer, model=None, tokenizer="ideal"))
    assert report.model == "ideal"


@pytest.mark.tier3
def test_what_passes_has_a_limit_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "MAX_SAMPLES", 5_000)
    report = run(_bench(ReferenceServer(gap_s=GAP_S).answer, levels=(1, 2), duration_s=600.0, warmup_s=0.001))
    assert not report.is_complete
    assert "which is the limit" in report.incomplete_reason
    assert 10 < sum(step.requests for step in report.steps) < 100


# Secrets.


@pytest.mark.tier3
@pytest.mark.parametrize(("host", "is_sent"), [("127.0.0.1", True), ("localhost", False)])
def test_key_and_headers_are_not_sent_to_another_host(host: str, is_sent: bool) -> None:
    heard: list[dict[str, str]] = []
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        heard.append(seen.headers)
        return ideal.answer(seen)

    async def work(**more: Any) -> list[dict[str, str]]:  # noqa: ANN401 - any setting
        heard.clear()
        async with serving(ideal.answer) as first, serving(choose) as second:
            other = second.replace("127.0.0.1", host)
            told = {"key": KEY, "headers": (("X-Token", "another-secret"),), "levels": (1,), "duration_s": 0.05}
            await run_bench(_settings(first, against=other, **told, **more))
        return list(heard)

    sent = run(work())
    assert {"authorization" in headers for headers in sent} == {is_sent}
    assert {"x-token" in headers for headers in sent} == {is_sent}
    assert {headers["authorization"] for headers in run(work(against_key="its-own-key"))} == {"Bearer its-own-key"}


def test_a_key_that_the_server_repeats_is_redacted() -> None:
    report = run(_bench(_by_turns(None, error_reply(401, f"the key {KEY} is worn out")), key=KEY))
    assert KEY not in msgspec.json.encode(report, enc_hook=list).decode()
    assert "401: the key [hidden] is worn out" in _last(report).reasons
    with pytest.raises(BenchUnreachableError) as caught:
        run(_bench(lambda _: error_reply(401, f"who is {KEY}"), key=KEY))
    assert KEY not in str(caught.value)
