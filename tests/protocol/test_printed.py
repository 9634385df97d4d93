"""Tool calls that a model wrote as text."""

import json

import pytest

from tests.protocol.build import FALLBACK, finish, named, piece, role, say, stream
from tests.table import table
from welldone.protocol.envelope import Endpoint
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.protocol.text_tool_calls import TEXT_TOOL_CALL_LIMIT_CHARS

CALL = json.dumps({"name": "get", "arguments": {"x": 1}})
TOOLS = frozenset({"get"})


def piped(*texts: str, tools: frozenset[str] = TOOLS) -> tuple[bytes, int]:
    """What goes out for these texts, one chunk each, and how many calls were seen in it."""
    pipe = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, tool_names=tools))
    frames = [role(), *(say({"content": text}) for text in texts), finish()]
    out = b"".join(pipe.feed(stream(frame, end=b"")) for frame in frames)
    return out + pipe.feed(b"data: [DONE]\n\n") + pipe.close(), pipe.text_tool_calls


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
def test_a_call_in_the_text_is_counted_and_never_altered(text: str, count: int) -> None:
    for cut in ([text], list(text) if len(text) < TEXT_TOOL_CALL_LIMIT_CHARS else [text]):
        assert piped(*cut)[1] == count
        assert piped(*cut)[0] == piped(*cut, tools=frozenset())[0]
    assert piped(text, tools=frozenset())[1] == 0


def test_a_real_call_is_none() -> None:
    pipe = StreamPipeline(Endpoint.CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1, tool_names=TOOLS))
    frames = [role(), say({"content": "{"}), say({"tool_calls": [named()]}), say({"tool_calls": [piece("{}")]})]
    pipe.feed(stream(*frames, finish("tool_calls")))
    pipe.close()
    assert pipe.text_tool_calls == 0


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"tools": [{"function": {"name": "get"}}, {"function": {"name": 7}}, {"function": 7}, 7]}, {"get"}),
        ({"tools": [{"function": {"name": "get"}}], "tool_choice": "none"}, set()),
        ({"tools": 7}, set()),
    ],
)
def test_the_names_of_tools_are_read(body: dict[str, object], names: set[str]) -> None:
    assert read_request_facts(body).tool_names == names
