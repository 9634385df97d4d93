"""Every injected fault has the effect that its name promises."""

import gzip

import pytest

from tests.engines.supervisors import run
from tests.mock.raw_client import connect
from tests.table import table
from welldone.mock.script import HELLO_REPLY, MockScript, with_raw_http
from welldone.mock.server import start_mock_server
from welldone.mock.variants import ALL_FAULTS, FAULT_REPLIES
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
"""Status and state of the connection, unless they are 200 and open."""
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


async def _receive(name: str) -> tuple[bytes, str]:
    """Return all received bytes and the final state of the connection."""
    reply = FAULT_REPLIES[name]
    async with await start_mock_server(MockScript(posts=(reply,), speed=0)) as server, connect(server.port) as client:
        client.send({"stream": True})
        received = b""
        try:
            while len(received) < len(with_raw_http(reply).body) and (data := await client.reader.read(2**16)):
                received += data
            await server.wait_until(
                lambda: bool(server.requests) and (reply.end == "hang" or server.requests[0].end != "running")
            )
            if server.counts.open:
                return received, OPEN
            assert await client.read_rest() == b""
        except ConnectionResetError:
            return received, RESET
        return received, CLOSED


def _trace(name: str) -> tuple[Trace, str]:
    received, end = run(_receive(name))
    return read_capture(received), end


@table("name", sorted(FAULT_REPLIES.keys() - BIG))
def test_a_fault_has_its_status_and_end(name: str) -> None:
    trace, end = _trace(name)
    assert (trace.status, end) == ENDS.get(name, (200, OPEN))


@table("name", ["stream", "slow", "close-after", "no-length", "http-1.0"])
def test_faults_of_http_framing_deliver_the_complete_body(name: str) -> None:
    assert _trace(name)[0].body == HELLO_REPLY.body


@pytest.mark.parametrize("name", ["cut", "reset", "hang"])
def test_an_interrupted_stream_ends_within_the_text(name: str) -> None:
    body = _trace(name)[0].body
    assert HELLO_REPLY.body.startswith(body)
    assert HELLO_REPLY.body.index(b"Hello") - 100 < len(body) < HELLO_REPLY.body.index(b"stop")


@table("name", RULES)
def test_a_fault_of_the_stream_is_found_by_the_judge(name: str) -> None:
    trace, _ = _trace(name)
    found = {finding.rule for finding in judge(trace).findings}
    assert found > {finding.rule for finding in judge(_trace("stream")[0]).findings}
    assert RULES[name] is None or RULES[name] in found


@pytest.mark.parametrize(("name", "value"), [("limited", "7"), ("limited-silent", None), ("unavailable", "7")])
def test_overload_errors_have_their_retry_after_header(name: str, value: str | None) -> None:
    assert _trace(name)[0].header("retry-after") == value


@table("status", [301, 302, 307, 308])
def test_a_redirect_has_a_location(status: int) -> None:
    assert (_trace(f"redirect-{status}")[0].header("location") or "").startswith("http://127.0.0.1:9/")


def test_content_lengths_are_wrong() -> None:
    assert _trace("too-short")[0].complete is False
    long = _trace("too-long")[0]
    assert len(long.body) > int(long.header("content-length") or 0)


def test_the_buffered_reply_is_correct() -> None:
    trace, _ = _trace("whole")
    assert trace.media_type == "application/json"
    assert judge(trace).findings == ()


def test_the_compressed_stream_decompresses_to_the_body() -> None:
    trace, _ = _trace("gzip")
    assert trace.header("content-encoding") == "gzip"
    assert gzip.decompress(trace.body) == HELLO_REPLY.body


def test_a_gzip_bomb_is_small_before_decompression() -> None:
    bomb = FAULT_REPLIES["gzip-bomb"].pieces[0]
    assert len(bomb.data) < 2**21
    assert len(gzip.decompress(bomb.base64)) * bomb.times == 2**30


@pytest.mark.tier3
def test_a_long_line_is_long() -> None:
    trace, _ = _trace("long-line")
    assert max(map(len, trace.body.split(b"\n"))) > 10 * 2**20


def test_an_endless_stream_continues() -> None:
    async def main() -> None:
        script = MockScript(posts=(FAULT_REPLIES["endless"],), speed=0)
        async with await start_mock_server(script) as server, connect(server.port) as client:
            client.send()
            received = await client.reader.readexactly(2**20)
            assert received.count(b"Hello") > 1000

    run(main())


def test_names_and_descriptions_are_unique() -> None:
    assert len(FAULT_REPLIES) == len(ALL_FAULTS) == len({fault.description for fault in ALL_FAULTS})
    assert all(fault.description and "\n" not in fault.description for fault in ALL_FAULTS)
