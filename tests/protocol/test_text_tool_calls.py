"""Detection of tool calls that a model wrote as text."""

import json

import pytest

from tests.protocol.build import FALLBACK, call_start, delta_chunk, finish, piece, role, stream
from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.request_facts import RequestFacts, read_request_facts
from welldone.core.text_tool_calls import TEXT_TOOL_CALL_LIMIT_CHARS
from welldone.stream.pipeline import StreamPipeline

CALL = json.dumps({"name": "get", "arguments": {"x": 1}})
TOOLS = frozenset({"get"})


def sent_and_count(*texts: str, tools: frozenset[str] = TOOLS) -> tuple[bytes, int]:
    """Bytes sent for texts in one chunk each, and the number of detected calls."""
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, tool_names=tools))
    frames = [role(), *(delta_chunk({"content": text}) for text in texts), finish()]
    out = b"".join(pipeline.feed(stream(frame, end=b"")) for frame in frames)
    return out + pipeline.feed(b"data: [DONE]\n\n") + pipeline.close(), pipeline.result.text_tool_calls


@table(
    ("text", "count"),
    [
        (CALL, 1),
        (f"\n ```json\n{CALL}\n```\n", 1),
        (f"[{CALL}]", 1),
        (CALL.replace("arguments", "parameters"), 1),
        (CALL.replace("get", "put"), 0),
        (CALL.replace("arguments", "args"), 0),
        (CALL.replace('"get"', "7"), 0),
        (f"I call {CALL}", 0),
        (CALL[:-1], 0),
        ("{" + "x" * TEXT_TOOL_CALL_LIMIT_CHARS + "}", 0),
        ("   ", 0),
        ("7", 0),
    ],
)
def test_a_tool_call_in_the_text_is_counted_and_passes_unchanged(text: str, count: int) -> None:
    for cut in ([text], list(text) if len(text) < TEXT_TOOL_CALL_LIMIT_CHARS else [text]):
        assert sent_and_count(*cut)[1] == count
        assert sent_and_count(*cut)[0] == sent_and_count(*cut, tools=frozenset())[0]
    assert sent_and_count(text, tools=frozenset())[1] == 0


def test_a_real_tool_call_is_not_counted() -> None:
    pipeline = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, tool_names=TOOLS))
    frames = [
        role(),
        delta_chunk({"content": "{"}),
        delta_chunk({"tool_calls": [call_start()]}),
        delta_chunk({"tool_calls": [piece("{}")]}),
    ]
    pipeline.feed(stream(*frames, finish("tool_calls")))
    pipeline.close()
    assert pipeline.result.text_tool_calls == 0


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"tools": [{"function": {"name": "get"}}, {"function": {"name": 7}}, {"function": 7}, 7]}, {"get"}),
        ({"tools": [{"function": {"name": "get"}}], "tool_choice": "none"}, set()),
        ({"tools": 7}, set()),
    ],
)
def test_tool_names_are_read_from_the_request(body: dict[str, object], names: set[str]) -> None:
    assert read_request_facts(body).tool_names == names
