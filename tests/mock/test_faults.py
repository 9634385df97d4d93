"""Each fault is what its name says."""

import gzip

import pytest

from tests.engines.asking import connect
from tests.engines.fleets import run
from tests.table import table
from welldone.mock.faults import ALL_FAULTS, FAULT_REPLIES
from welldone.mock.script import HELLO_REPLY, MockScript, with_raw_http
from welldone.mock.server import start_mock_server
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture

CLOSED, RESET, OPEN = "closed", "reset", "open"
BIG = {"long-line", "gzip-bomb", "endless"}
ENDS = {
    "cut": (200, CLOSED),
    "reset": (200, RESET),
    "hang": (200, OPEN),
    "close-first": (None, CLOSED),
    "reset-first": (None, RESET),
    "hang-first": (None, OPEN),
    "cut-head": (200, CLOSED),
    "close-after": (200, CLOSED),
    "not-http": (None, CLOSED),
    "limited": (429, OPEN),
    "limited-silent": (429, OPEN),
    "broken": (500, OPEN),
    "unavailable": (503, OPEN),
    "unavailable-silent": (503, OPEN),
    "redirect-301": (301, OPEN),
    "redirect-302": (302, OPEN),
    "redirect-307": (307, OPEN),
    "redirect-308": (308, OPEN),
    "too-short": (200, CLOSED),
    "too-long": (200, CLOSED),
    "no-length": (200, CLOSED),
    "http-1.0": (200, CLOSED),
}
"""The status, and what becomes of the connection, where that is not 200 and a connection that stays."""
RULES = {
    "no-done": "end-done-sent",
    "no-finish": "fin-always-sent",
    "wrong-type": "http-content-type",
    "error-event": None,
    "bad-json": None,
    "html": None,
    "garbage": None,
    "empty": None,
}


async def _hear(name: str) -> tuple[bytes, str]:
    """All that comes, and what becomes of the connection."""
    reply = FAULT_REPLIES[name]
    async with await start_mock_server(MockScript(posts=(reply,), speed=0)) as server, connect(server.port) as asker:
        asker.ask({"stream": True})
        heard = b""
        try:
            while len(heard) < len(with_raw_http(reply).body) and (data := await asker.reader.read(2**16)):
                heard += data
            await server.wait_until(
                lambda: bool(server.requests) and (reply.end == "hang" or server.requests[0].end != "running")
            )
            if server.counts.open:
                return heard, OPEN
            assert await asker.rest() == b""
        except ConnectionResetError:
            return heard, RESET
        return heard, CLOSED


def _play(name: str) -> tuple[Trace, str]:
    heard, end = run(_hear(name))
    return read_capture(heard), end


@table("name", sorted(FAULT_REPLIES.keys() - BIG))
def test_a_fault_has_its_status_and_its_end(name: str) -> None:
    trace, end = _play(name)
    assert (trace.status, end) == ENDS.get(name, (200, OPEN))


@table("name", ["stream", "slow", "close-after", "no-length", "http-1.0"])
def test_what_is_wrong_with_http_alone_says_hello(name: str) -> None:
    assert _play(name)[0].body == HELLO_REPLY.body


@pytest.mark.parametrize("name", ["cut", "reset", "hang"])
def test_what_breaks_off_has_begun_and_has_not_said_all(name: str) -> None:
    body = _play(name)[0].body
    assert HELLO_REPLY.body.startswith(body)
    assert HELLO_REPLY.body.index(b"Hello") - 100 < len(body) < HELLO_REPLY.body.index(b"stop")


@table("name", RULES)
def test_what_is_wrong_with_the_stream_is_judged_wrong(name: str) -> None:
    trace, _ = _play(name)
    found = {finding.rule for finding in judge(trace).findings}
    assert found > {finding.rule for finding in judge(_play("stream")[0]).findings}
    assert RULES[name] is None or RULES[name] in found


@pytest.mark.parametrize(("name", "value"), [("limited", "7"), ("limited-silent", None), ("unavailable", "7")])
def test_who_is_refused_may_be_told_when_to_come_again(name: str, value: str | None) -> None:
    assert _play(name)[0].header("retry-after") == value


@table("status", [301, 302, 307, 308])
def test_a_redirect_names_a_place(status: int) -> None:
    assert (_play(f"redirect-{status}")[0].header("location") or "").startswith("http://127.0.0.1:9/")


def test_lengths_are_wrong() -> None:
    assert _play("too-short")[0].complete is False
    long = _play("too-long")[0]
    assert len(long.body) > int(long.header("content-length") or 0)


def test_a_whole_reply_is_a_right_one() -> None:
    trace, _ = _play("whole")
    assert trace.media_type == "application/json"
    assert judge(trace).findings == ()


def test_a_compressed_stream_says_hello() -> None:
    trace, _ = _play("gzip")
    assert trace.header("content-encoding") == "gzip"
    assert gzip.decompress(trace.body) == HELLO_REPLY.body


def test_a_bomb_is_small_until_it_is_unpacked() -> None:
    bomb = FAULT_REPLIES["gzip-bomb"].pieces[0]
    assert len(bomb.data) < 2**21
    assert len(gzip.decompress(bomb.base64)) * bomb.times == 2**30


@pytest.mark.tier3
def test_a_long_line_is_long() -> None:
    trace, _ = _play("long-line")
    assert max(map(len, trace.body.split(b"\n"))) > 10 * 2**20


def test_an_endless_stream_goes_on() -> None:
    async def main() -> None:
        script = MockScript(posts=(FAULT_REPLIES["endless"],), speed=0)
        async with await start_mock_server(script) as server, connect(server.port) as asker:
            asker.ask()
            heard = await asker.reader.readexactly(2**20)
            assert heard.count(b"Hello") > 1000

    run(main())


def test_each_has_a_name_and_a_line_of_its_own() -> None:
    assert len(FAULT_REPLIES) == len(ALL_FAULTS) == len({fault.description for fault in ALL_FAULTS})
    assert all(fault.description and "\n" not in fault.description for fault in ALL_FAULTS)
