"""Concurrent clients: each receives its own answer, and each answer is valid."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.support.raw import LIMIT_S, ParsedReply, chat, complete, fetch
from tests.support.server import Running

pytestmark = pytest.mark.tier3

CLIENTS = 16
WORDS = [
    *("cat", "dog", "sun", "moon", "tree", "bird", "fish", "house"),
    *("water", "fire", "book", "king", "queen", "horse", "apple", "river"),
]


def marker(number: int) -> str:
    """A text that only this client uses."""
    return f"mark{number:02d}{'abcdefghijklmnop'[number]}"


def fixed(text: str) -> dict[str, object]:
    """The schema of an object that contains only this text."""
    properties = {"marker": {"const": text}}
    return {"type": "object", "properties": properties, "required": ["marker"], "additionalProperties": False}


def request_json(server: Running, number: int, stream: bool) -> ParsedReply:
    """The schema makes the answer the marker as JSON."""
    named = {"name": "marker", "schema": fixed(marker(number))}
    response_format = {"type": "json_schema", "json_schema": named}
    answer = chat(server, marker(number), stream=stream, response_format=response_format, max_tokens=200)
    assert msgspec.json.decode(answer.text) == {"marker": marker(number)}
    return answer


def request_call(server: Running, number: int, stream: bool) -> ParsedReply:
    """The tool call contains the marker."""
    tool = {"type": "function", "function": {"name": marker(number), "parameters": fixed(marker(number))}}
    answer = chat(server, marker(number), stream=stream, tools=[tool], tool_choice="required", max_tokens=200)
    assert [(name, msgspec.json.decode(call)) for name, call in answer.choice.calls] == [
        (marker(number), {"marker": marker(number)})
    ]
    return answer


def request_echo(server: Running, number: int, stream: bool) -> ParsedReply:
    """Each choice starts with its prompt, which contains the marker."""
    answer = complete(server, [marker(number), marker(number) * 2], stream=stream, echo=True, max_tokens=100)
    assert [choice.text.startswith(marker(number) * (1 + index)) for index, choice in enumerate(answer.choices)] == [
        *(True, True)
    ]
    return answer


def request_choices(server: Running, number: int, stream: bool) -> ParsedReply:
    """Prompt and answer lengths differ per client, so the usage identifies the client."""
    prompt = "hello " * number
    answer = chat(server, prompt, stream=stream, n=2, max_tokens=60 + number)
    assert [choice.finish for choice in answer.choices] == ["length", "length"]
    assert answer.counts[1] == 2 * (60 + number)
    return answer


KINDS: list[Callable[[Running, int, bool], ParsedReply]] = [request_json, request_call, request_echo, request_choices]


def test_sixteen_concurrent_clients_each_get_their_own_answer(tiny_server: Running) -> None:
    barrier = threading.Barrier(CLIENTS, timeout=LIMIT_S)

    def client(number: int) -> list[ParsedReply]:
        barrier.wait()
        kind = KINDS[number % len(KINDS)]
        return [kind(tiny_server, number, stream) for stream in (True, number % 8 < 4)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [answer for both in pool.map(client, range(CLIENTS), timeout=LIMIT_S) for answer in both]
    assert len({answer.id for answer in answers}) == 2 * CLIENTS
    assert len({answer.reply.header("x-request-id") for answer in answers}) == 2 * CLIENTS


def test_sixteen_concurrent_streams_of_the_default_model_each_contain_their_own_word(server: Running) -> None:
    barrier = threading.Barrier(CLIENTS, timeout=LIMIT_S)
    tokens = {word: fetch(server, "/tokenize", {"content": f" {word}"}).ok()["tokens"][0] for word in WORDS}

    def client(word: str) -> ParsedReply:
        bias = {str(tokens[word]): 100}  # forces this token
        barrier.wait()
        return complete(server, "The", stream=True, temperature=0, max_tokens=8, logit_bias=bias)

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, WORDS, timeout=LIMIT_S))
    assert len(set(tokens.values())) == CLIENTS
    assert [answer.text for answer in answers] == [f" {word}" * 8 for word in WORDS]


def test_a_client_cannot_truncate_the_answer_of_another(tiny_server: Running) -> None:
    # Four answers fill their slots to the last token; together they use the whole context.
    with ThreadPoolExecutor(4) as pool:
        futures = [
            pool.submit(chat, tiny_server, f"{number} " * 100, stream=True, max_tokens=100_000, ignore_eos=True)
            for number in range(4)
        ]
        for future in futures:
            answer = future.result(LIMIT_S)
            assert answer.choice.finish == "length"
            assert sum(answer.counts) >= 2048 - 8
