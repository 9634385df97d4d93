"""Stop strings with the real engine: nothing of them is shown, nothing else is lost, and tokens are counted."""

from typing import Any

import pytest

from tests.live.faults import LINUX, PROCESSING, until
from tests.live.raw import STREAM, chat, complete
from tests.live.server import Running

pytestmark = pytest.mark.tier3

COUNT = "Count from 1 to 200. Write only the numbers, separated by commas."
CALM: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "cache_prompt": False}
NEVER = "~ZQ~"


@STREAM
@pytest.mark.parametrize("length", [1, 2, 5])
def test_an_end_that_a_stop_string_could_have_begun_with_is_said(server: Running, stream: bool, length: int) -> None:
    full = chat(server, COUNT, **CALM)
    assert chat(server, COUNT, stream=stream, stop=full.text[-length:] + NEVER, **CALM) == full


@STREAM
def test_the_end_of_a_continuation_is_said_too(server: Running, stream: bool) -> None:
    full = complete(server, "1, 2, 3, 4,", **CALM)
    assert complete(server, "1, 2, 3, 4,", stream=stream, stop=full.text[-2:] + NEVER, **CALM) == full


@STREAM
def test_the_own_end_of_an_answer_is_said(server: Running, stream: bool) -> None:
    # An answer that can be but one thing ends by itself, whatever the model would say.
    schema = {"type": "object", "properties": {"said": {"const": "hello"}}, "required": ["said"]}
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema | {"additionalProperties": False}}}
    fields = CALM | {"max_tokens": 60, "response_format": form}
    full = chat(server, "Hello", **fields)
    assert full.one.finish == "stop"
    assert chat(server, "Hello", stream=stream, stop=full.text[-3:] + NEVER, **fields) == full


@STREAM
def test_of_an_answer_that_is_cut_the_tokens_up_to_there_count(server: Running, stream: bool) -> None:
    full = chat(server, COUNT, logprobs=True, **CALM)
    tokens = [one["token"] for one in full.one.tokens]
    for place in (1, 5, 11):
        stop = "".join(tokens[place : place + 3])
        if full.text.index(stop) != len("".join(tokens[:place])):
            continue  # it stands earlier already
        said = chat(server, COUNT, stream=stream, stop=stop, **CALM)
        assert said.text == "".join(tokens[:place])
        assert said.one.finish == "stop"
        assert said.counts == (full.counts[0], place + 3)


@STREAM
def test_an_answer_may_be_over_before_its_first_word(server: Running, stream: bool) -> None:
    full = chat(server, COUNT, **CALM)
    said = chat(server, COUNT, stream=stream, stop=full.text[:3], **CALM)
    assert (said.text, said.one.finish, said.one.role) == ("", "stop", "assistant")


@STREAM
def test_log_probabilities_are_those_of_the_text(server: Running, stream: bool) -> None:
    full = chat(server, COUNT, **CALM)
    middle = len(full.text) // 2
    stop = full.text[middle : middle + 5]
    said = chat(server, COUNT, stream=stream, stop=stop, logprobs=True, **CALM)
    assert "".join(one["token"] for one in said.one.tokens) == said.text == full.text[: full.text.index(stop)]
    text = complete(server, "1, 2, 3, 4,", stream=stream, stop=", 7", logprobs=1, **CALM)
    assert "".join(text.one.logprobs["tokens"]) == text.text


@STREAM
def test_a_stop_string_may_be_anywhere_in_odd_text(tiny_server: Running, stream: bool) -> None:
    fields = CALM | {"max_tokens": 60}
    full = chat(tiny_server, "Hello", **fields)
    for place in range(0, len(full.text) - 4, 7):
        stop = full.text[place : place + 4]
        said = chat(tiny_server, "Hello", stream=stream, stop=[NEVER, stop], n=2, seed=1, **fields)
        assert [choice.text for choice in said.choices] == [full.text[: full.text.index(stop)]] * 2


@STREAM
def test_thoughts_are_not_searched(zoo: Running, stream: bool) -> None:
    fields = CALM | {"model": "thinking", "max_tokens": 200}
    full = chat(zoo, "Hello", **fields)
    stop = full.one.reasoning[5:8]
    assert stop
    said = chat(zoo, "Hello", stream=stream, stop=stop, **fields)
    assert said.one.reasoning == full.one.reasoning
    assert said.text == full.text.partition(stop)[0]


@STREAM
def test_a_prompt_that_is_repeated_is_not_searched(server: Running, stream: bool) -> None:
    said = complete(server, "1, 2, 3, 4,", stream=stream, stop=", 3", echo=True, **CALM)
    assert said.text.startswith("1, 2, 3, 4,")


@LINUX
def test_the_engine_stops_where_the_answer_does(server: Running) -> None:
    stop = chat(server, COUNT, **CALM).text[5:8]
    assert chat(server, COUNT, stop=stop, **CALM | {"max_tokens": 4000}).one.finish == "stop"
    until(server, PROCESSING, 0)
