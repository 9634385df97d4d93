"""Thoughts in tags, taken out of the text where that was asked for."""

import json

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    cuts,
    finish,
    named,
    piece,
    role,
    rules,
    say,
    stream,
    text,
    text_end,
    words,
)
from tests.table import table
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.text_filters import ThinkMode
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

FORMS: list[tuple[ThinkMode, str, str, str]] = [
    # how, what was said, the words, the thoughts
    ("no", "<think>why</think>so", "<think>why</think>so", ""),
    ("tags", "<think>why</think>so", "so", "why"),
    ("tags", "\n<think>why</think>\n\nso", "\n\nso", "why"),
    ("tags", "so <think>no</think>", "so <think>no</think>", ""),
    ("tags", "why</think>so", "why</think>so", ""),
    ("tags", "<think>cut", "", "cut"),
    ("open", "why</think>so", "so", "why"),
    ("open", "<think>why</think>so", "so", "why"),
    ("open", "cut", "", "cut"),
]


def heard(body: bytes, name: str) -> str:
    """All that was said in one field of the deltas."""
    chunks = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get(name) or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.no_cover
@table(("think", "said", "spoken", "thought"), FORMS)
@table("length", [1, 3, 100])
def test_thoughts_are_taken_out_however_the_text_is_cut(
    think: ThinkMode, said: str, spoken: str, thought: str, length: int
) -> None:
    texts = [said[start : start + length] for start in range(0, len(said), length)]
    data = stream(role(), *words(*texts), finish())
    bodies = set()
    for size in (1, 50, 1 << 20):
        pipe = StreamPipeline(CHAT, fallback=FALLBACK, think=think)
        body = b"".join([*(pipe.feed(part) for part in cuts(data, size)), pipe.close()])
        assert (heard(body, "content"), heard(body, "reasoning_content")) == (spoken, thought)
        assert judge(Trace(body=body, endpoint="chat")).findings == ()
        assert rules(pipe.repair_log) == []
        bodies.add(body)
    assert len(bodies) == 1
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, think=think)
    fold.feed(data)
    fold.close()
    message = json.loads(fold.body())["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content", "")) == (spoken, thought)


@table("said", ["<think> is the tag. The answer is 42.", "<think>b</think>so", "why</think>so", "so!"])
@table("think", ["no", "tags", "open"])
def test_where_reasoning_has_a_field_only_a_setting_moves_tags_out_of_content(said: str, think: ThinkMode) -> None:
    data = stream(role(), say({"reasoning_content": "a"}), *words(said), finish())
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, think=think)
    body = pipe.feed(data) + pipe.close()
    if think == "tags" and said.startswith("<think>"):
        thought, _, rest = said.removeprefix("<think>").partition("</think>")
        assert (heard(body, "reasoning_content"), heard(body, "content")) == (f"a{thought}", rest)
    else:
        assert body == data
    assert rules(pipe.repair_log) == []


def test_white_space_after_thoughts_comes_before_the_call_that_follows() -> None:
    data = stream(role(), *words("<think>why</think>", "\n\n"), say(named()), say(piece("{}")), finish("tool_calls"))
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, think="tags")
    body = pipe.feed(data) + pipe.close()
    assert body == stream(
        role(),
        say({"reasoning_content": "why"}),
        *words("\n\n"),
        say(named()),
        say(piece("{}")),
        finish("tool_calls"),
    )


def test_a_completion_keeps_its_text() -> None:
    data = stream(text("<think>why</think>so"), text_end())
    for think in ("tags", "open"):
        pipe = StreamPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS], think=think)
        assert pipe.feed(data) + pipe.close() == data


def test_each_part_is_read_as_its_server_needs() -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, fan_out=FanOut(2))
    fold.configure(1, think="open")
    for part in (0, 1):
        fold.feed(stream(role(), *words("why</think>so"), finish()), part)
        fold.close(part)
    first, second = (choice["message"] for choice in json.loads(fold.body())["choices"])
    assert first["content"] == "why</think>so"
    assert (second["content"], second["reasoning_content"]) == ("so", "why")
