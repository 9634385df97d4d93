"""Datasets: all formats are read, and errors name the position."""

import json
import tracemalloc
from pathlib import Path

import pytest

from tests.table import table
from welldone.bench import prompts
from welldone.bench.prompts import read_dataset

USER = {"role": "user", "content": "Who are you?"}
ASKED = [[{"role": "user", "content": "Who are you?"}]]


def _file(folder: Path, text: str | bytes, name: str = "data.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@table(
    "text",
    [
        json.dumps([{"id": "1", "conversations": [USER]}]),
        json.dumps([{"conversations": [{"from": "human", "value": "Who are you?"}]}]),
        json.dumps([{"conversations": [{"from": "user", "value": "Who are you?"}, {"from": "gpt", "value": "I"}]}]),
        json.dumps([{"messages": [USER], "score": 1.5}]),
        json.dumps([{"prompt": "Who are you?"}], indent=4),
        json.dumps({"prompt": "Who are you?"}),
        json.dumps({"text": "Who are you?", "prompt": None}),
        json.dumps({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": []}]}),
        json.dumps({"conversations": [USER, {"role": "tool", "content": "5"}]}) + "\r\n\n",
        "\ufeff" + json.dumps([{"prompt": "Who are you?"}]),
        "  \n" + json.dumps({"prompt": "Who are you?"}),
    ],
)
def test_all_formats_give_the_same_conversation(text: str, tmp_path: Path) -> None:
    assert read_dataset(_file(tmp_path, text)) == [ASKED]


def test_a_turn_is_a_user_message_with_the_system_message_before_it(tmp_path: Path) -> None:
    system, second = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}
    said = [system, USER, {"role": "assistant", "content": "I am."}, second, {"role": "system", "content": "Stop."}]
    assert read_dataset(_file(tmp_path, json.dumps([{"conversations": said}]))) == [[[system, USER], [second]]]


def test_conversations_without_a_user_message_are_skipped(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "assistant", "content": "Hi"}]}, {"prompt": ""}, {"prompt": "Who are you?"}]
    assert read_dataset(_file(tmp_path, "\n".join(map(json.dumps, rows)))) == [ASKED]


@table(
    ("text", "complaint"),
    [
        ("", "no conversation with a user message"),
        ("[]", "no conversation with a user message"),
        ('{"prompt": "a"}\n\n{"prompt": 5}', r"data.json, line 3: Expected str \| null, got int - at \$.prompt"),
        ('{"prompt": "a"}\n{"prompt": ', "data.json, line 2: "),
        ('{"prompt": "a"}\n{"question": "b"}', 'data.json, line 2: there is no "prompt", "text", "messages" or'),
        ("hello", "data.json, line 1: JSON is malformed"),
        ('[\n{"prompt": "a"},\n{"prompt": x}\n]', "data.json, line 3: JSON is malformed"),
        ('[{"prompt": "a"}, {"question": "b"}]', "data.json, entry 2: there is no"),
        ('[{"prompt": "a"}, {"messages": [{"role": 5}]}]', r"at \$\[1\].messages\[0\].role"),
        (b'{"prompt": "\xff"}', "line 1"),
        (b'[{"prompt": "\xff"}]', "data.json"),
        ("[" * 100_000, "data.json"),
        ("5", "line 1: Expected object, got int"),
    ],
)
def test_an_invalid_dataset_is_rejected_with_the_position(text: str | bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_dataset(_file(tmp_path, text))


def test_a_missing_file_or_a_folder_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ValueError, match="there is no dataset file"):
            read_dataset(path)


def test_a_file_that_is_too_large_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "DATASET_LIMIT_BYTES", 2**20)
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 1 MB"):
            read_dataset(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
