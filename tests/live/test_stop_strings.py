"""Stop strings with the real engine: removed completely, without loss of other text, and with correct usage."""

from typing import Any

import pytest

from tests.support.faults import LINUX, PROCESSING, wait_for_metric
from tests.support.raw import STREAM, chat, complete
from tests.support.server import Running

pytestmark = pytest.mark.tier3

COUNT = "Count from 1 to 200. Write only the numbers, separated by commas."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "cache_prompt": False}
ABSENT = "~ZQ~"


@STREAM
@pytest.mark.parametrize("length", [1, 2, 5])
def test_an_answer_that_ends_with_a_prefix_of_a_stop_string_is_complete(
    server: Running, stream: bool, length: int
) -> None:
    full = chat(server, COUNT, **GREEDY)
    assert chat(server, COUNT, stream=stream, stop=full.text[-length:] + ABSENT, **GREEDY) == full


@STREAM
def test_a_completion_that_ends_with_a_prefix_of_a_stop_string_is_complete(server: Running, stream: bool) -> None:
    full = complete(server, "1, 2, 3, 4,", **GREEDY)
    assert complete(server, "1, 2, 3, 4,", stream=stream, stop=full.text[-2:] + ABSENT, **GREEDY) == full


@STREAM
def test_an_answer_that_ends_by_itself_with_a_prefix_of_a_stop_string_is_complete(
    server: Running, stream: bool
) -> None:
    # A schema with one constant determines the whole answer, whatever the model would generate.
    schema = {"type": "object", "properties": {"word": {"const": "hello"}}, "required": ["word"]}
    named = {"name": "word", "schema": schema | {"additionalProperties": False}}
    fields = GREEDY | {"max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": named}}
    full = chat(server, "Hello", **fields)
    assert full.choice.finish == "stop"
    assert chat(server, "Hello", stream=stream, stop=full.text[-3:] + ABSENT, **fields) == full


@STREAM
def test_usage_counts_the_tokens_up_to_the_stop_string(server: Running, stream: bool) -> None:
    full = chat(server, COUNT, logprobs=True, **GREEDY)
    tokens = [one["token"] for one in full.choice.tokens]
    for index in (1, 5, 11):
        stop = "".join(tokens[index : index + 3])
        if full.text.index(stop) != len("".join(tokens[:index])):
            continue  # it also occurs earlier
        answer = chat(server, COUNT, stream=stream, stop=stop, **GREEDY)
        assert answer.text == "".join(tokens[:index])
        assert answer.choice.finish == "stop"
        assert answer.counts == (full.counts[0], index + 3)


@STREAM
def test_an_answer_can_end_before_its_first_character(server: Running, stream: bool) -> None:
    full = chat(server, COUNT, **GREEDY)
    answer = chat(server, COUNT, stream=stream, stop=full.text[:3], **GREEDY)
    assert (answer.text, answer.choice.finish, answer.choice.role) == ("", "stop", "assistant")


@STREAM
def test_log_probabilities_cover_only_the_returned_text(server: Running, stream: bool) -> None:
    full = chat(server, COUNT, **GREEDY)
    middle = len(full.text) // 2
    stop = full.text[middle : middle + 5]
    answer = chat(server, COUNT, stream=stream, stop=stop, logprobs=True, **GREEDY)
    assert "".join(one["token"] for one in answer.choice.tokens) == answer.text == full.text[: full.text.index(stop)]
    text = complete(server, "1, 2, 3, 4,", stream=stream, stop=", 7", logprobs=1, **GREEDY)
    assert "".join(text.choice.logprobs["tokens"]) == text.text


@STREAM
def test_a_stop_string_is_found_at_any_position(tiny_server: Running, stream: bool) -> None:
    fields = GREEDY | {"max_tokens": 60}
    full = chat(tiny_server, "Hello", **fields)
    for start in range(0, len(full.text) - 4, 7):
        stop = full.text[start : start + 4]
        answer = chat(tiny_server, "Hello", stream=stream, stop=[ABSENT, stop], n=2, seed=1, **fields)
        assert [choice.text for choice in answer.choices] == [full.text[: full.text.index(stop)]] * 2


@STREAM
def test_reasoning_is_not_searched_for_stop_strings(zoo: Running, stream: bool) -> None:
    fields = GREEDY | {"model": "thinking", "max_tokens": 200}
    full = chat(zoo, "Hello", **fields)
    stop = full.choice.reasoning[5:8]
    assert stop
    answer = chat(zoo, "Hello", stream=stream, stop=stop, **fields)
    assert answer.choice.reasoning == full.choice.reasoning
    assert answer.text == full.text.partition(stop)[0]


@STREAM
def test_an_echoed_prompt_is_not_searched_for_stop_strings(server: Running, stream: bool) -> None:
    answer = complete(server, "1, 2, 3, 4,", stream=stream, stop=", 3", echo=True, **GREEDY)
    assert answer.text.startswith("1, 2, 3, 4,")


@LINUX
def test_the_engine_stops_when_a_stop_string_is_found(server: Running) -> None:
    stop = chat(server, COUNT, **GREEDY).text[5:8]
    assert chat(server, COUNT, stop=stop, **GREEDY | {"max_tokens": 4000}).choice.finish == "stop"
    wait_for_metric(server, PROCESSING, 0)
