"""Think mode: `<think>` tags become reasoning if configured."""

import json

import pytest

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    call_start,
    content_chunks,
    cuts,
    delta_chunk,
    finish,
    piece,
    role,
    rules,
    stream,
    text,
    text_end,
)
from tests.table import table
from welldone.core.request_facts import RepairOptions
from welldone.core.text_filters import ThinkMode
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

FORMS: list[tuple[ThinkMode, str, str, str]] = [
    # mode, content, visible text, reasoning
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


def field_text(body: bytes, name: str) -> str:
    """Joined text of one field of the deltas."""
    chunks = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get(name) or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.no_cover
@table(("think", "content", "visible", "reasoning"), FORMS)
@table("length", [1, 3, 100])
def test_think_tags_become_reasoning_for_all_text_boundaries(
    think: ThinkMode, content: str, visible: str, reasoning: str, length: int
) -> None:
    texts = [content[start : start + length] for start in range(0, len(content), length)]
    data = stream(role(), *content_chunks(*texts), finish())
    bodies = set()
    for size in (1, 50, 1 << 20):
        pipeline = StreamPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think=think))
        body = b"".join([*(pipeline.feed(part) for part in cuts(data, size)), pipeline.close()])
        assert (field_text(body, "content"), field_text(body, "reasoning_content")) == (visible, reasoning)
        assert judge(Trace(body=body, endpoint="chat")).findings == ()
        assert rules(pipeline.repair_log) == []
        bodies.add(body)
    assert len(bodies) == 1
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think=think))
    buffered.feed(data)
    buffered.close()
    message = json.loads(buffered.body())["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content", "")) == (visible, reasoning)


@table("content", ["<think> is the tag. The answer is 42.", "<think>b</think>so", "why</think>so", "so!"])
@table("think", ["no", "tags", "open"])
def test_think_tags_next_to_a_reasoning_field_are_converted_only_if_configured(content: str, think: ThinkMode) -> None:
    data = stream(role(), delta_chunk({"reasoning_content": "a"}), *content_chunks(content), finish())
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think=think))
    body = pipeline.feed(data) + pipeline.close()
    if think == "tags" and content.startswith("<think>"):
        reasoning, _, rest = content.removeprefix("<think>").partition("</think>")
        assert (field_text(body, "reasoning_content"), field_text(body, "content")) == (f"a{reasoning}", rest)
    else:
        assert body == data
    assert rules(pipeline.repair_log) == []


def test_white_space_after_reasoning_precedes_the_next_tool_call() -> None:
    data = stream(
        role(),
        *content_chunks("<think>why</think>", "\n\n"),
        delta_chunk(call_start()),
        delta_chunk(piece("{}")),
        finish("tool_calls"),
    )
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think="tags"))
    body = pipeline.feed(data) + pipeline.close()
    assert body == stream(
        role(),
        delta_chunk({"reasoning_content": "why"}),
        *content_chunks("\n\n"),
        delta_chunk(call_start()),
        delta_chunk(piece("{}")),
        finish("tool_calls"),
    )


def test_think_tags_of_a_completion_stay_in_the_text() -> None:
    data = stream(text("<think>why</think>so"), text_end())
    for think in ("tags", "open"):
        pipeline = StreamPipeline(COMPLETIONS, fallback=FALLBACKS[COMPLETIONS], options=RepairOptions(think=think))
        assert pipeline.feed(data) + pipeline.close() == data


def test_the_think_mode_is_set_per_part() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, fan_out=FanOut(2))
    buffered.configure(1, RepairOptions(think="open"))
    for part in (0, 1):
        buffered.feed(stream(role(), *content_chunks("why</think>so"), finish()), part)
        buffered.close(part)
    first, second = (choice["message"] for choice in json.loads(buffered.body())["choices"])
    assert first["content"] == "why</think>so"
    assert (second["content"], second["reasoning_content"]) == ("so", "why")


MINIMAX = [  # pieces of the content, and of the field; what is received of the thought
    ([("<think>The user", "The user"), (" says hi.</think>Hello", " says hi."), ("!", "")], "The user says hi."),
    (
        [("<think>The us", ""), ("er says hi.</think>Hello!", ""), ("", "The user "), ("", "says hi.")],
        "The user says hi.",
    ),
    ([("", "The user says hi."), ("<think>The us", ""), ("er says hi.</think>Hello!", "")], "The user says hi."),
    ([("", "The user"), ("<think>The user says hi.</think>Hello!", ""), ("", " says hi.")], "The user says hi."),
    ([("", "The user says hi."), ("<think>The user</think>Hello!", "")], "The user says hi."),
    ([("", "I see."), ("<think>I ", ""), ("know.</think>Hello!", "")], "I see.I know."),
    ([("", "I see."), ("<think>I ", ""), ("know</think>Hello!", ""), ("", "Yes.")], "I see.I knowYes."),
    ([("", "I "), ("<think>I see", ""), ("", "know"), (".</think>Hello!", "")], "I seeknow."),
    ([("", "aé"), ("<think>aè</think>Hello!", "")], "aéaè"),
]


@table(("pieces", "thought"), MINIMAX)
def test_a_thought_in_tags_and_in_a_field_is_sent_once_if_it_is_the_same(
    pieces: list[tuple[str, str]], thought: str
) -> None:
    deltas = [{"content": content, "reasoning_content": field} for content, field in pieces]
    data = stream(role(), *map(delta_chunk, deltas), finish())
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think="tags"))
    sent = pipeline.feed(data) + pipeline.close()
    assert field_text(sent, "reasoning_content") == thought
    assert field_text(sent, "content") == "Hello!"
    assert ("ext-no-think-tags" in pipeline.repair_log.counts()) is (thought != "aéaè")


@table("field", ["hm", "oh"])
def test_a_reply_with_a_thought_in_tags_and_in_a_field_has_it_once(field: str) -> None:
    message = {"role": "assistant", "content": "<think>hm</think>so", "reasoning_content": field}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think="tags"))
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    buffered.feed_reply(json.dumps(reply).encode())
    buffered.close()
    repaired = json.loads(buffered.body())["choices"][0]["message"]
    assert (repaired["reasoning_content"], repaired["content"]) == ("hm" if field == "hm" else "ohhm", "so")
