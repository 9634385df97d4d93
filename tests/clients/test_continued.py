"""Real clients read an answer that is continued after a failure as any other.

The first reply to each request is cut at a byte that is drawn from the name of the test; or the engine is killed. The
uncut answer to the same client is the reference.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.clients import metrics
from tests.clients.api_clients import ANTHROPIC_PYTHON, EACH_STREAM, ApiClient
from tests.clients.client import Client, Program
from tests.clients.matrix_clients import parsed
from tests.clients.programs.job import WEATHER, Job, Result
from tests.clients.test_clients import PROGRAMS
from tests.oracle import codex
from tests.support.faults import LINUX, RESTARTS, engine_of, small_server
from tests.support.server import Running
from tests.support.upstream import Upstream, eventually, gateway, upstream
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, cut_at
from welldone.mock.server import MockHttpRequest

WORDS = ("The ", "fox ", "crosses ", "the ", "brìdge \N{FOX FACE} ", 'and "sings" ', "to ", "the\n", "moon", ".")
CALL = ("get_weather", {"city": "Oslo", "days": 2})
PROMPT_TOKENS = 12
TEXT, USAGE = "".join(WORDS), [PROMPT_TOKENS, len(WORDS), PROMPT_TOKENS + len(WORDS)]
WAYS = {"prefill": 'continues = "prefill"', "replay": ""}
"""Settings of the upstreams by the way in which an answer goes on. Their model has the same name."""
NAMES = ("one", "two")
"""Of the upstreams."""
UNCUT = -1
DRAWS = 2
"""Cuts per test."""
CONTINUED = "welldone_continuations_total"
DECODED = "llamacpp:n_decode_total"
KILLED_AFTER, LOCAL_TOKENS = 20, 96
"""Tokens at which the engine is killed, and of the whole answer."""
CHAT_CLIENTS = ("openai-python", "openai-python-helpers", "openai-node", "openai-node-helpers", "ai-sdk")
CHAT_FIELDS = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
EACH_WAY = pytest.mark.parametrize("way", WAYS)

Compare = Callable[..., Result]


def _delta(reason: str | None = None, **delta: object) -> MockChunk:
    # The pause lets the gateway send each chunk before the cut.
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(delta), json.dumps(reason)), after_s=0.002)


def _reply(chunks: list[MockChunk], reason: str, *, prompt: int) -> MockReply:
    """A reply with one token per chunk."""
    counts = {"prompt_tokens": prompt, "completion_tokens": len(chunks), "total_tokens": prompt + len(chunks)}
    usage = MockChunk(f"data: {json.dumps({'choices': [], 'usage': counts})}\n\n")
    role = _delta(role="assistant", content="")
    return MockReply((role, *chunks, _delta(reason), usage, MockChunk("data: [DONE]\n\n")))


def _text_chunks(words: tuple[str, ...]) -> list[MockChunk]:
    return [_delta(content=word) for word in words]


def _call_chunks() -> list[MockChunk]:
    name, arguments = CALL
    encoded = json.dumps(arguments)
    start = {"index": 0, "id": "call_a", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": encoded[at : at + 4]}} for at in range(0, len(encoded), 4)]
    return [_delta(tool_calls=[call]) for call in (start, *pieces)]


WHOLE = _reply(_text_chunks(WORDS), "stop", prompt=PROMPT_TOKENS)
CALLS = _reply(_call_chunks(), "tool_calls", prompt=PROMPT_TOKENS)
ANSWER = _reply(_text_chunks(("It rains.",)), "stop", prompt=PROMPT_TOKENS)


def cuts(reply: MockReply, name: str) -> list[int]:
    """Draw bytes after the first content and before the finish."""
    draw = Random(name)
    sizes = [len(piece.data) for piece in reply.pieces]
    return [draw.randrange(sum(sizes[:3]), sum(sizes[:-3])) for _ in range(DRAWS)]


class CutUpstreams:
    """Two upstreams: the one that gets a request first cuts its reply, and the other one continues it."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        """Attempts by upstream, at requests that are cut."""
        self._known: set[str] = set()

    def replies_of(self, name: str) -> Callable[[MockHttpRequest], MockReply]:
        """The replies of one of them."""

        def choose(seen: MockHttpRequest) -> MockReply:
            return self._choose(name, seen)

        return choose

    def _choose(self, name: str, seen: MockHttpRequest) -> MockReply:
        body = json.loads(seen.body)
        messages = body["messages"]
        if any(message["role"] == "tool" for message in messages):
            return ANSWER
        order, byte = re.findall(r"(Request \S+, byte (-?\d+)\.)", seen.body)[0]
        has_weather = any(tool["function"]["name"] == CALL[0] for tool in body.get("tools", ()))
        reply = CALLS if has_weather else WHOLE
        if int(byte) == UNCUT:
            return reply
        self.attempts[name] += 1
        if order not in self._known:
            self._known.add(order)
            return cut_at(reply, int(byte))
        if messages[-1]["role"] == "assistant":
            return _rest(messages[-1]["content"])
        return reply


def _rest(delivered: str) -> MockReply:
    """The rest of the answer after a prefill, with the usage of that request."""
    count = next(count for count in range(len(WORDS)) if "".join(WORDS[:count]) == delivered)
    return _reply(_text_chunks(WORDS[count:]), "stop", prompt=PROMPT_TOKENS + count)


@pytest.fixture(scope="module")
def cut_upstreams() -> CutUpstreams:
    return CutUpstreams()


@pytest.fixture(scope="module")
def cut_gateway(cut_upstreams: CutUpstreams, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with ExitStack() as stack:
        upstreams: dict[str, Upstream] = {
            name: stack.enter_context(upstream(cut_upstreams.replies_of(name))) for name in NAMES
        }
        tables = [
            f'[upstreams.{way}-{name}]\nurl = "{server.url}"\nmodels = ["{way}", "{way}-{name}"]\n{settings}'
            for way, settings in WAYS.items()
            for name, server in upstreams.items()
        ]
        folder = tmp_path_factory.mktemp("gateway")
        yield stack.enter_context(gateway(folder, more="\n".join(tables)))


@pytest.fixture
def compare(
    cut_gateway: Running,
    cut_upstreams: CutUpstreams,
    client_of: Callable[[Program], Client],
    request: pytest.FixtureRequest,
) -> Compare:
    """Run a scenario uncut and with cuts, compare the results, and return them."""
    name = re.sub(r"[^\w-]", "-", request.node.name)

    def run(program: Program, scenario: str, way: str, reply: MockReply = WHOLE, **fields: Any) -> Result:  # noqa: ANN401 - fields of a job
        def ask(model: str, byte: int) -> Result:
            words = f"Request {name}, byte {byte}."
            address = _address(cut_gateway, model)
            job = Job(scenario=scenario, prompt=words, question=words, **address, **fields)
            return _with_joined_texts(client_of(program).run_job(job))

        # A success at each upstream: several failures in a row would open its circuit breaker.
        expected, other = (ask(f"{way}-{name}", UNCUT) for name in NAMES)
        assert expected == other
        for byte in cuts(reply, name):
            way_used = f'{CONTINUED}{{outcome="complete",way="{way if reply is WHOLE else "replay"}"}}'
            before, attempts = metrics.read(cut_gateway, way_used), dict(cut_upstreams.attempts)
            assert ask(way, byte) == expected, f"cut at byte {byte}"
            # Gemini has no pieces of calls: a client that has none of a call gets the next attempt as the first.
            is_whole_call = reply is CALLS and fields.get("endpoint") == "gemini"
            assert metrics.read(cut_gateway, way_used) - before in ((0, 1) if is_whole_call else (1,))
            assert cut_upstreams.attempts == {name: attempts.get(name, 0) + 1 for name in NAMES}
        return expected

    return run


def _address(server: Running, model: str) -> dict[str, Any]:
    return {"base_url": server.url, "model": model, "key": server.key or "none"}


def _with_joined_texts(result: Result) -> Result:
    """The result of a job with its texts as a whole: their pieces differ at the seam."""
    return {
        name: _with_joined_texts(value)
        if isinstance(value, dict)
        else "".join(value)
        if name in ("pieces", "thoughts")
        else value
        for name, value in result.items()
    }


@EACH_WAY
@pytest.mark.parametrize("name", CHAT_CLIENTS)
def test_a_chat_client_shows_the_uncut_answer(compare: Compare, name: str, way: str) -> None:
    result = compare(PROGRAMS[name], "read", way, parameters=CHAT_FIELDS)
    assert result == {"choices": [[TEXT, [], "stop"]], "usage": USAGE, "error": None}


@EACH_WAY
@pytest.mark.parametrize("name", CHAT_CLIENTS)
def test_a_chat_client_shows_the_uncut_tool_call(compare: Compare, name: str, way: str) -> None:
    parameters = {**CHAT_FIELDS, "tools": [WEATHER], "tool_choice": "auto"}
    result = compare(PROGRAMS[name], "read", way, CALLS, parameters=parameters)
    ((text, ((called, arguments),), finish),) = result["choices"]
    assert (text, called, parsed(arguments), finish) == ("", *CALL, "tool_calls")
    assert result["usage"] is not None


@EACH_WAY
@EACH_STREAM
def test_a_client_of_another_dialect_shows_the_uncut_answer(
    compare: Compare, client: ApiClient, mode: str, way: str
) -> None:
    result = compare(client.program, "answer", way, endpoint=client.endpoint, mode=mode)
    assert (result["pieces"], result["finish"], result["error"]) == (TEXT, client.finish_reasons[0], None)
    assert result["usage"] == USAGE


@EACH_STREAM
def test_a_client_of_another_dialect_shows_the_uncut_tool_call(compare: Compare, client: ApiClient, mode: str) -> None:
    result = compare(client.program, "call", "replay", CALLS, endpoint=client.endpoint, mode=mode)
    assert result["called"]["calls"] == [list(CALL)]
    assert result["answered"]["pieces"] == "It rains."


@pytest.mark.parametrize("uses_socket", [False, True], ids=["http", "websocket"])
@pytest.mark.skipif(codex.why_missing() is not None, reason=str(codex.why_missing()))
def test_codex_shows_the_uncut_answer(
    cut_gateway: Running,
    cut_upstreams: CutUpstreams,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    uses_socket: bool,
) -> None:
    def ask(model: str, byte: int) -> codex.Turn:
        words = f"Request {request.node.name}, byte {byte}."
        seen = len(cut_gateway.log.all)
        turn = codex.run_turn(
            cut_gateway.url, cut_gateway.key or "none", model, words, folder=tmp_path, uses_socket=uses_socket
        )
        if uses_socket:
            cut_gateway.log.wait(r"path=/v1/responses status=(101|499)", seen=seen)
        return turn

    expected = codex.Turn((TEXT,), PROMPT_TOKENS, len(WORDS))
    assert [ask(f"prefill-{name}", UNCUT) for name in NAMES] == [expected, expected]
    for byte in cuts(WHOLE, request.node.name):
        before, attempts = metrics.read(cut_gateway, CONTINUED), dict(cut_upstreams.attempts)
        assert ask("prefill", byte) == expected, f"cut at byte {byte}"
        assert metrics.read(cut_gateway, CONTINUED) == before + 1
        assert cut_upstreams.attempts == {name: attempts.get(name, 0) + 1 for name in NAMES}


@pytest.fixture(scope="module")
def mortal_server(default_model: Path) -> Iterator[Running]:
    """A server whose engine is killed; others share theirs."""
    with small_server(default_model, "-c", "2048") as running:
        yield running
        assert running.end() == 0


@LINUX
@pytest.mark.parametrize("name", ["openai-python", "openai-node", "ai-sdk", "anthropic-python"])
def test_a_client_shows_the_same_answer_after_the_engine_was_killed(
    mortal_server: Running, client_of: Callable[[Program], Client], name: str
) -> None:
    if name == "anthropic-python":
        fields: dict[str, Any] = {"scenario": "answer", "endpoint": "messages", "mode": "stream"}
    else:
        fields = {"scenario": "read", "parameters": {**CHAT_FIELDS, "max_tokens": LOCAL_TOKENS}}
    # The next token is never a close decision, see tests/live/test_continuation.py.
    job = Job(
        prompt="Count from 1 to 40.", max_tokens=LOCAL_TOKENS, **_address(mortal_server, mortal_server.model), **fields
    )
    client = client_of(ANTHROPIC_PYTHON if name == "anthropic-python" else PROGRAMS[name])
    expected = _with_joined_texts(client.run_job(job))
    assert expected["error"] is None
    before = [metrics.read(mortal_server, counter) for counter in (RESTARTS, CONTINUED)]
    decoded = metrics.read(mortal_server, DECODED)
    with ThreadPoolExecutor(1) as pool, engine_of(mortal_server) as engine:
        result = pool.submit(client.run_job, job)
        eventually(lambda: metrics.read(mortal_server, DECODED) >= decoded + KILLED_AFTER)
        engine.kill()
        assert _with_joined_texts(result.result()) == expected
    assert [metrics.read(mortal_server, counter) for counter in (RESTARTS, CONTINUED)] == [
        count + 1 for count in before
    ]
