"""Prompts: their length, unique openings, and continued conversations."""

import json
import random
from pathlib import Path

import pytest

from tests.http.aio import run
from tests.table import table
from welldone.bench.prompts import PromptRequest, PromptSource, PromptWriter, make_prompt_source
from welldone.bench.settings import BenchSettings, parse_length
from welldone.bench.tokens import ESTIMATED_COUNTER, BenchTokenCounter, WordCounter, find_token_counter
from welldone.bench.words import CLASSIFICATION_STYLE, CODE_STYLE, PROSE_STYLE, WORKLOAD_PROFILES, PromptStyle

URL = "http://localhost/v1"
STYLES = pytest.mark.parametrize(
    "style", [PROSE_STYLE, CODE_STYLE, CLASSIFICATION_STYLE], ids=["prose", "code", "labels"]
)
COUNTED = WordCounter("words", {})


async def _no_server(path: str, body: dict[str, object]) -> None:
    raise AssertionError(path)


def _gguf_counter(path: Path) -> BenchTokenCounter:
    counter = run(find_token_counter(str(path), _no_server))
    assert counter is not None
    return counter


@pytest.fixture(scope="module")
def default_counter(default_model: Path) -> BenchTokenCounter:
    """The default model's own tokens."""
    return _gguf_counter(default_model)


def _text(turn: PromptRequest) -> str:
    text = turn.messages[-1]["content"]
    assert isinstance(text, str)
    return text


def _prompts(counter: BenchTokenCounter | None = None, seed: int = 0, **settings: object) -> PromptSource:
    return make_prompt_source(BenchSettings(url=URL, **settings), counter, random.Random(seed))  # type: ignore[arg-type]


# Synthetic prompts.


@STYLES
def test_a_synthetic_prompt_has_exactly_the_given_tokens(
    style: PromptStyle, default_counter: BenchTokenCounter
) -> None:
    writer = PromptWriter(style, default_counter, random.Random(5))
    for tokens in (*range(40, 120), 200, 517, 1024, 4096):
        text, said = writer.write(tokens)
        assert (said, default_counter.count(text)) == (tokens, tokens)


@STYLES
def test_a_prompt_too_short_for_its_instruction_is_cut(style: PromptStyle, default_counter: BenchTokenCounter) -> None:
    writer = PromptWriter(style, default_counter, random.Random(5))
    for tokens in range(1, 40):
        text, said = writer.write(tokens)
        assert said == default_counter.count(text)
        assert tokens - 1 <= said <= tokens


@STYLES
def test_a_sentencepiece_vocabulary_gives_exact_lengths_too(style: PromptStyle, tiny_model: Path) -> None:
    counter = _gguf_counter(tiny_model)
    writer = PromptWriter(style, counter, random.Random(5))
    for tokens in (150, 200, 517, 1024):
        text, said = writer.write(tokens)
        assert said == counter.count(text)
        assert tokens - 2 <= said <= tokens


@STYLES
def test_without_a_tokenizer_the_length_is_about_right(style: PromptStyle, default_counter: BenchTokenCounter) -> None:
    writer = PromptWriter(style, ESTIMATED_COUNTER, random.Random(5))
    assert 1800 < default_counter.count(writer.write(2000)[0]) < 2400


@STYLES
def test_no_two_prompts_have_the_same_opening(style: PromptStyle) -> None:
    writer = PromptWriter(style, COUNTED, random.Random(0))
    openings = [writer.write(60)[0][:40] for _ in range(2000)]
    assert len(set(openings)) == len(openings)


@STYLES
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_prompts_depend_on_the_seed_only(style: PromptStyle, seed: int) -> None:
    first, second = (PromptWriter(style, COUNTED, random.Random(seed)) for _ in range(2))
    assert [first.write(80) for _ in range(3)] == [second.write(80) for _ in range(3)]
    assert first.write(80) != PromptWriter(style, COUNTED, random.Random(seed + 1)).write(80)


@table("name", WORKLOAD_PROFILES)
def test_every_profile_works_offline(name: str) -> None:
    profile = WORKLOAD_PROFILES[name]
    prompts = _prompts(COUNTED, profile=name)
    for _ in range(10):
        turn = prompts.next()
        assert turn.max_tokens is not None
        assert profile.decode.min_tokens <= turn.max_tokens <= profile.decode.max_tokens
        assert turn.prompt_tokens == sum(COUNTED.count(message["content"]) for message in turn.messages)
        assert profile.synthetic_length.min_tokens <= COUNTED.count(_text(turn)) <= profile.synthetic_length.max_tokens


def test_given_lengths_override_the_profile() -> None:
    prompts = _prompts(
        COUNTED, profile="classification", prompt=parse_length("num_tokens=70"), decode=parse_length("num_tokens=9")
    )
    turn = prompts.next()
    assert (turn.prompt_tokens, turn.max_tokens, len(turn.messages)) == (70, 9, 1)


def test_without_a_profile_every_request_has_a_limit() -> None:
    turn = _prompts(COUNTED).next()
    assert turn.prompt_tokens == 200
    assert turn.max_tokens is not None
    assert not turn.remaining


def test_without_a_tokenizer_prompts_have_no_token_count() -> None:
    assert _prompts().next().prompt_tokens is None


# Conversations.


def test_the_history_contains_the_answers_of_the_server() -> None:
    prompts = _prompts(COUNTED, profile="chat")
    turn, answers = prompts.next(), 0
    assert [message["role"] for message in turn.messages] == ["system", "user"]
    while turn.remaining:
        answers += 1
        prompts.add_answer(turn, f"answer {answers}")
        later = prompts.next()
        assert later.messages[:-1] == [*turn.messages, {"role": "assistant", "content": f"answer {answers}"}]
        assert later.messages[-1]["role"] == "user"
        assert later.prompt_tokens is None
        turn = later
    assert 1 <= answers <= 5
    prompts.add_answer(turn, "the end")
    assert len(prompts.next().messages) == 2


def test_conversations_continue_in_order_before_new_ones_start() -> None:
    prompts = _prompts(profile="chat")
    first, second = prompts.next(), prompts.next()
    prompts.add_answer(second, "B")
    prompts.add_answer(first, "A")
    assert [prompts.next().messages[2]["content"] for _ in range(2)] == ["B", "A"]
    assert len(prompts.next().messages) == 2


def test_a_conversation_ends_after_an_answer_without_text() -> None:
    prompts = _prompts(profile="chat")
    prompts.add_answer(prompts.next(), "")
    assert len(prompts.next().messages) == 2


def test_an_answer_does_not_change_the_request() -> None:
    prompts = _prompts(profile="chat")
    turn = prompts.next()
    before = json.dumps(turn.messages)
    prompts.add_answer(turn, "A")
    prompts.next()
    assert json.dumps(turn.messages) == before


# Datasets.


def _dataset(folder: Path, *texts: str) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    return path


def test_a_dataset_is_repeated_after_its_end(tmp_path: Path) -> None:
    texts = [f"Question {number}, please?" for number in range(20)]
    prompts = _prompts(COUNTED, dataset=_dataset(tmp_path, *texts))
    first, second = ([_text(prompts.next()) for _ in texts] for _ in range(2))
    assert sorted(first) == sorted(texts)
    assert first == second != texts


def test_a_dataset_is_not_cut_without_a_length(tmp_path: Path) -> None:
    path = _dataset(tmp_path, "one two three four five", "one two")
    prompts = _prompts(COUNTED, dataset=path)
    assert {(_text(turn), turn.prompt_tokens) for turn in (prompts.next(), prompts.next())} == {
        ("one two three four five", 5),
        ("one two", 2),
    }
    prompts = _prompts(COUNTED, dataset=path, prompt=parse_length("num_tokens=3"))
    assert [(_text(turn), turn.prompt_tokens) for turn in (prompts.next(), prompts.next())] == [
        ("one two three", 3),
        ("one two three", 3),
    ]


def test_a_profile_cuts_a_dataset_to_its_length(tmp_path: Path) -> None:
    prompts = _prompts(dataset=_dataset(tmp_path, "word " * 900), profile="fixed-length")
    assert len(_text(prompts.next()).split()) == 200


def test_a_dataset_with_only_short_messages_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no first message of 10 tokens or more"):
        _prompts(dataset=_dataset(tmp_path, "one two"), prompt=parse_length("num_tokens=10"))


def test_the_turns_of_a_dataset_are_sent_in_order(tmp_path: Path) -> None:
    said = [{"from": "system", "value": "Be brief."}]
    for text in ("Who?", "Why?", "When?"):
        said += [{"from": "human", "value": text}, {"from": "gpt", "value": "never used"}]
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"conversations": said}]))
    prompts = _prompts(COUNTED, dataset=path, profile="chat")
    turn = prompts.next()
    assert turn.prompt_tokens == 5
    for answer in ("A", "B"):
        prompts.add_answer(turn, answer)
        turn = prompts.next()
    assert [message["content"] for message in turn.messages] == ["Be brief.", "Who?", "A", "Why?", "B", "When?"]
    assert [message["role"] for message in turn.messages] == ["system", *("user", "assistant") * 2, "user"]
