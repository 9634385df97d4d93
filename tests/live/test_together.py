"""Many clients at once: each gets its own answer, and each answer is right."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.live.raw import LIMIT_S, Said, ask, chat, complete
from tests.live.server import Running

pytestmark = pytest.mark.tier3

CLIENTS = 16
WORDS = [
    *("cat", "dog", "sun", "moon", "tree", "bird", "fish", "house"),
    *("water", "fire", "book", "king", "queen", "horse", "apple", "river"),
]


def marker(number: int) -> str:
    """What only this client says."""
    return f"mark{number:02d}{'abcdefghijklmnop'[number]}"


def fixed(text: str) -> dict[str, object]:
    """The schema of an object that can say only this."""
    properties = {"said": {"const": text}}
    return {"type": "object", "properties": properties, "required": ["said"], "additionalProperties": False}


def ask_in_form(server: Running, number: int, stream: bool) -> Said:
    """The marker comes back as JSON, since nothing else can."""
    named = {"name": "form", "schema": fixed(marker(number))}
    form = {"type": "json_schema", "json_schema": named}
    said = chat(server, marker(number), stream=stream, response_format=form, max_tokens=200)
    assert msgspec.json.decode(said.text) == {"said": marker(number)}
    return said


def ask_for_call(server: Running, number: int, stream: bool) -> Said:
    """The marker comes back in a call."""
    tool = {"type": "function", "function": {"name": marker(number), "parameters": fixed(marker(number))}}
    said = chat(server, marker(number), stream=stream, tools=[tool], tool_choice="required", max_tokens=200)
    assert [(name, msgspec.json.decode(call)) for name, call in said.one.calls] == [
        (marker(number), {"said": marker(number)})
    ]
    return said


def ask_for_echo(server: Running, number: int, stream: bool) -> Said:
    """The marker comes back before the text that continues it."""
    said = complete(server, [marker(number), marker(number) * 2], stream=stream, echo=True, max_tokens=100)
    assert [choice.text.startswith(marker(number) * (1 + place)) for place, choice in enumerate(said.choices)] == [
        *(True, True)
    ]
    return said


def ask_for_many(server: Running, number: int, stream: bool) -> Said:
    """Several choices of different length of prompt: the usage is the client's own."""
    prompt = "hello " * number
    said = chat(server, prompt, stream=stream, n=2, max_tokens=60 + number)
    assert [choice.finish for choice in said.choices] == ["length", "length"]
    assert said.counts[1] == 2 * (60 + number)
    return said


KINDS: list[Callable[[Running, int, bool], Said]] = [ask_in_form, ask_for_call, ask_for_echo, ask_for_many]


def test_sixteen_clients_at_once_each_get_their_own_answer(tiny_server: Running) -> None:
    begin = threading.Barrier(CLIENTS, timeout=LIMIT_S)

    def client(number: int) -> list[Said]:
        begin.wait()
        kind = KINDS[number % len(KINDS)]
        return [kind(tiny_server, number, stream) for stream in (True, number % 8 < 4)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [said for both in pool.map(client, range(CLIENTS), timeout=LIMIT_S) for said in both]
    assert len({said.id for said in answers}) == 2 * CLIENTS
    assert len({said.reply.header("x-request-id") for said in answers}) == 2 * CLIENTS


def test_sixteen_streams_of_the_default_model_each_go_on_with_their_own_words(server: Running) -> None:
    begin = threading.Barrier(CLIENTS, timeout=LIMIT_S)
    tokens = {word: ask(server, "/tokenize", {"content": f" {word}"}).ok()["tokens"][0] for word in WORDS}

    def client(word: str) -> Said:
        bias = {str(tokens[word]): 100}  # whatever the model would say: this token is certain
        begin.wait()
        return complete(server, "The", stream=True, temperature=0, max_tokens=8, logit_bias=bias)

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, WORDS, timeout=LIMIT_S))
    assert len(set(tokens.values())) == CLIENTS
    assert [said.text for said in answers] == [f" {word}" * 8 for word in WORDS]


def test_one_client_cannot_end_the_answer_of_another(tiny_server: Running) -> None:
    # Four answers that fill their slots to the last token: together they are as long as all of the context.
    with ThreadPoolExecutor(4) as pool:
        asks = [
            pool.submit(chat, tiny_server, f"{number} " * 100, stream=True, max_tokens=100_000, ignore_eos=True)
            for number in range(4)
        ]
        for one in asks:
            said = one.result(LIMIT_S)
            assert said.one.finish == "length"
            assert sum(said.counts) >= 2048 - 8
