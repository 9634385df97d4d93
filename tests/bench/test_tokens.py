"""Token counters agree with the server of the model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines import files
from tests.http.aio import run
from tests.models.gguf_writer import Array, Kind, Scalar, Value
from tests.support.raw import fetch
from tests.support.server import Running
from tests.table import table
from welldone.bench import words
from welldone.bench.tokens import ESTIMATED_COUNTER, BenchTokenCounter, WordCounter, find_token_counter, why_no_counter
from welldone.config.settings import install_advice
from welldone.engines.models import gguf

Json = dict[str, Any]
TEXTS = [
    "",
    "Hello, world! It's 12345 o'clock.",
    "  spaces\n\n\tand lines  \n",
    "Zürich \N{GRINNING FACE} 日本\u2028",
    "def count(x=17):\n    return [x] * 3  # twelve\n\n\nclass A:\n    pass",
]
# Eight tokens: six letters, a word and its half.
TOKENIZER: Json = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 100},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    },
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "ab": 4, "cd": 5, "abcd": 6},
        "merges": [["a", "b"], ["c", "d"], ["ab", "cd"]],
    },
}


async def _no_server(path: str, body: Json) -> None:
    raise AssertionError(path)


def _found(spec: str | Path, **env: str) -> BenchTokenCounter | None:
    return run(find_token_counter(str(spec), _no_server, env))


def _counter(spec: str | Path, **env: str) -> BenchTokenCounter:
    counter = _found(spec, **env)
    assert counter is not None
    return counter


# tokenizer.json


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TOKENIZER))
    return path


def test_a_tokenizer_file_or_its_folder_counts(tokenizer: Path) -> None:
    for spec in (tokenizer, tokenizer.parent):
        counter = _counter(spec)
        assert counter.name == str(spec)
        assert [counter.count(text) for text in ("", "a", "abcd", "abcd ab dc")] == [0, 1, 1, 4]


def test_a_text_is_truncated_to_its_first_tokens(tokenizer: Path) -> None:
    counter = _counter(tokenizer)
    assert [counter.truncate("abcd ab dc", tokens) for tokens in range(6)] == [
        "",
        "abcd",
        "abcd ab",
        "abcd ab d",
        "abcd ab dc",
        "abcd ab dc",
    ]


@given(st.text("abcd \n", max_size=40), st.integers(0, 20))
def test_a_truncated_text_never_has_more_tokens(
    tmp_path_factory: pytest.TempPathFactory, text: str, tokens: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_text(json.dumps(TOKENIZER))
    counter = _counter(path)
    cut = counter.truncate(text, tokens)
    assert text.startswith(cut)
    assert counter.count(cut) <= tokens


@table("text", ["", "{}", "[]", "no", '{"model": {"type": "Magic"}}'])
def test_an_invalid_tokenizer_is_rejected_with_a_message(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a readable tokenizer"):
        _found(path)


def test_a_folder_or_path_without_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        _found(tmp_path)
    for name in ("tokenizer.json", "model.gguf"):
        with pytest.raises(ValueError, match="there is no tokenizer file"):
            _found(tmp_path / name)


def test_without_the_library_the_message_names_the_extra(tokenizer: Path) -> None:
    code = (
        "import asyncio, sys\nsys.modules['tokenizers'] = None\n"
        "from welldone.bench import prompts\nfrom welldone.bench.tokens import find_token_counter\n"
        "try: asyncio.run(find_token_counter(sys.argv[1], None))\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, tokenizer], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (
        f"a tokenizer needs the package tokenizers: {install_advice('bench')}\n",
        "",
    )


# Names on the Hugging Face hub


def _cache(folder: Path, name: str, *revisions: str, main: str | None = None) -> Path:
    repository = folder / f"models--{name.replace('/', '--')}"
    for number, revision in enumerate(revisions):
        (repository / "snapshots" / revision).mkdir(parents=True)
        vocab = TOKENIZER["model"] | {"merges": TOKENIZER["model"]["merges"][: number + 1]}
        text = json.dumps(TOKENIZER | {"model": vocab})
        (repository / "snapshots" / revision / "tokenizer.json").write_text(text)
    if main is not None:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(main)
    return folder


def test_a_name_on_the_hub_is_found_in_the_cache(tmp_path: Path) -> None:
    _cache(tmp_path / "hub", "microsoft/phi-4", "abc")
    assert _counter("microsoft/phi-4", HF_HOME=str(tmp_path)).name == "microsoft/phi-4"
    assert _counter("microsoft/phi-4", HF_HUB_CACHE=str(tmp_path / "hub")).name == "microsoft/phi-4"
    (tmp_path / "huggingface").symlink_to(tmp_path)
    assert _counter("microsoft/phi-4", XDG_CACHE_HOME=str(tmp_path)).name == "microsoft/phi-4"


def test_of_several_revisions_main_is_used(tmp_path: Path) -> None:
    for main, count in (("aaa", 3), ("bbb", 2), ("ccc", 1)):
        cache = _cache(tmp_path / main, "gpt2", "aaa", "bbb", "ccc", main=main)
        assert _counter("gpt2", HF_HUB_CACHE=str(cache)).count("abcd") == count


@table("name", ["microsoft/phi-4", "gpt2", "../..", "a/b/c", "*", ""])
def test_a_name_that_is_not_cached_is_not_downloaded(name: str, tmp_path: Path) -> None:
    if name not in ("../..", ""):  # these are folders
        assert _found(name, HF_HOME=str(tmp_path)) is None
    assert name in why_no_counter(name)


# GGUF


def test_a_gguf_counter_agrees_with_the_server(default_model: Path, server: Running) -> None:
    counter = _counter(default_model)
    told = [fetch(server, "/tokenize", {"content": text}).ok()["count"] for text in TEXTS]
    assert [counter.count(text) for text in TEXTS] == told


def test_added_tokens_count_as_one(tiny_model: Path) -> None:
    counter = _counter(tiny_model)
    assert counter.name == "the vocabulary of tiny.gguf"
    assert [counter.count(text) for text in ("<tool_call>", " hello", " hello<think> world", "ab")] == [1, 1, 3, 2]


def test_a_character_of_several_tokens_is_not_split(tiny_model: Path) -> None:
    counter = _counter(tiny_model)
    assert counter.count("aüü") == 5
    assert [counter.truncate("aüü", tokens) for tokens in range(6)] == ["", "a", "a", "aü", "aü", "aüü"]


BLANK = "\N{LOWER ONE EIGHTH BLOCK}"


def _pieces(**more: Value) -> bytes:
    scores = {"<unk>": 0.0, "<0xC3>": 0.0, "<0xA9>": 0.0, "<0x0A>": 0.0} | dict.fromkeys(f"{BLANK}helowrd", -100.0)
    scores |= {"he": -1.0, "ll": -2.0, "hell": -3.0, f"{BLANK}hell": -4.0, "lo": -1.5}
    told: dict[str, Value] = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__tokens": Array(Kind.STRING, list(scores)),
        "tokenizer__ggml__scores": Array(Kind.FLOAT32, list(scores.values())),
        "general__languages": Array(Kind.STRING, ["en"]),
    }
    return files.model(**(told | more))


def test_a_sentencepiece_vocabulary_merges_by_score(tmp_path: Path) -> None:
    path = tmp_path / "spm.gguf"
    path.write_bytes(_pieces())
    counter = _counter(path)
    # By the scores: he, then lo, which leaves nothing to join with ll: a blank, he, l, lo.
    assert counter.count("hello") == 4
    assert counter.count("hell") == 1
    assert counter.count("hell hell") == 2
    assert counter.count("hé\n") == 5  # a blank, h, two bytes of é, one of the line
    assert counter.truncate("hell hell hell", 2) == "hell hell"
    path.write_bytes(_pieces(tokenizer__ggml__add_space_prefix=False))
    assert _counter(path).count("hello") == 3


@table(
    ("pre", "count"),
    [("gpt-2", 2), ("smollm", 6), ("qwen2", 6), ("llama-bpe", 4), ("llama3", 4), ("own", 2)],
)
def test_numbers_are_split_by_the_pre_tokenizer(pre: str, count: int, tmp_path: Path) -> None:
    digits = [*"123456", "12", "123", "1234", "12345"]
    merges = ["1 2", "12 3", "123 4", "1234 5"]
    path = tmp_path / "digits.gguf"
    data = files.model(
        tokenizer__ggml__pre=pre,
        tokenizer__ggml__tokens=Array(Kind.STRING, digits),
        tokenizer__ggml__merges=Array(Kind.STRING, merges),
    )
    path.write_bytes(data)
    counter = _counter(path)
    assert counter.count("123456") == count
    assert ("split like GPT-2" in counter.name) is (pre == "own")


@table(
    ("more", "complaint"),
    [
        ({"tokenizer__ggml__model": "bert"}, "a.gguf has a tokenizer of the kind 'bert'; supported are gpt2 and llama"),
        ({"tokenizer__ggml__model": 5}, "no readable vocabulary"),
        ({"tokenizer__ggml__tokens": Array(Kind.INT32, [1])}, "no readable vocabulary"),
        ({"tokenizer__ggml__tokens": "text"}, "no readable vocabulary"),
    ],
)
def test_an_unsupported_vocabulary_is_rejected(more: dict[str, Value], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(files.model(**more))
    with pytest.raises(ValueError, match=complaint):
        _found(path)


def test_the_size_of_arrays_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(files.model(tokenizer__ggml__numbers=Array(Kind.UINT8, bytes(11))))
    monkeypatch.setattr(gguf, "STRINGS_LIMIT", 10)
    with pytest.raises(ValueError, match=r"a\.gguf has an array of 11 values; the limit is 10"):
        _found(path)


def test_an_invalid_or_truncated_gguf_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for data, complaint in ((b"hello", "a.gguf is not a GGUF file"), (_pieces()[:300], "a.gguf is truncated")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=complaint):
            _found(path)


def test_values_of_all_types_are_skipped(tmp_path: Path) -> None:
    kinds = [kind for kind in Kind if kind not in (Kind.STRING, Kind.ARRAY)]
    more: dict[str, Value] = {f"a__{kind.name}": Scalar(kind, 1) for kind in kinds}
    more |= {f"b__{kind.name}": Array(kind, [1, 0, 1]) for kind in kinds}
    path = tmp_path / "a.gguf"
    path.write_bytes(_pieces(**more))
    assert _counter(path).count("hell") == 1


# The server's /tokenize


def _asked(server: Running) -> BenchTokenCounter:
    async def posted(path: str, body: Json) -> Json | None:
        reply = fetch(server, path, body)
        return reply.ok() if reply.status == 200 else None

    counter = run(find_token_counter("server", posted))
    assert counter is not None
    return counter


def test_the_server_is_queried_once_for_the_tokens_of_all_words(server: Running, default_model: Path) -> None:
    counter, judge = _asked(server), _counter(default_model)
    assert counter.name == "the server's /tokenize, word by word"
    assert [counter.count(f" {word}") for word in words.ALL_WORDS] == [
        judge.count(f" {word}") for word in words.ALL_WORDS
    ]


@table("reply", [None, {}, {"tokens": []}, {"tokens": [1, 2, 1]}, {"tokens": 5}, {"tokens": [[1]]}])
def test_a_server_without_a_usable_tokenize_gives_no_counter(reply: Json | None) -> None:
    async def posted(path: str, body: Json) -> Json | None:
        assert (path, body["content"]) == ("/tokenize", body["prompt"])
        return reply

    assert run(find_token_counter("server", posted)) is None
    assert why_no_counter("server") == "the server has no usable /tokenize"


def test_without_a_tokenizer_there_is_no_counter() -> None:
    assert run(find_token_counter(None, _no_server)) is None
    assert why_no_counter(None) == "no tokenizer is given"


def test_unknown_words_are_estimated_by_their_length() -> None:
    counter = WordCounter("a test", {"harbour": 3})
    assert [counter.count(text) for text in ("", "harbour", "a harbour.", "antidisestablish", " \n ")] == [
        0,
        3,
        5,
        2,
        0,
    ]


@given(st.text(max_size=60), st.integers(0, 30))
def test_words_are_truncated_to_the_number_of_tokens(text: str, tokens: int) -> None:
    cut = ESTIMATED_COUNTER.truncate(text, tokens)
    assert text.startswith(cut)
    assert ESTIMATED_COUNTER.count(cut) <= tokens
    assert cut == text or ESTIMATED_COUNTER.count(text) > tokens
