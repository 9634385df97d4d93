"""Law 3 and 4 for text that may be the JSON of a tool call: only a whole call is converted, however it is split."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import SPECIAL_CHARACTERS
from welldone.core.collect import CollectedChoice, collect
from welldone.core.events import ChoiceStart, Event, Finish, Logprobs, Text
from welldone.core.json_tool_calls import JsonCallConverter, callable_tools
from welldone.core.repair_log import RepairLog

TOOLS = callable_tools(
    {
        "tools": [
            {"function": {"name": "get", "parameters": {"type": "object", "required": ["city"]}}},
            {"function": {"name": "any", "parameters": {"type": "object"}}},
        ]
    }
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
arguments = st.dictionaries(st.sampled_from(["city", "days", "a\nb", ""]), values, max_size=3)
spaces = st.text(alphabet=" \n\t", max_size=3)


@st.composite
def call_objects(draw: st.DrawFn) -> dict[str, Any]:
    """Objects that are a call, or nearly one."""
    member = draw(st.sampled_from(["arguments", "arguments", "parameters", "args"]))
    members: list[tuple[str, Any]] = [("name", draw(st.sampled_from(["get", "any", "put"]))), (member, draw(arguments))]
    if draw(st.booleans()):
        members.reverse()
    call = dict(members)
    if draw(st.integers(0, 9)) == 0:
        call[draw(st.sampled_from(["extra", "type"]))] = draw(st.one_of(values, st.just("function")))
    return call


@st.composite
def call_texts(draw: st.DrawFn) -> str:
    """Texts that are calls, or nearly so."""
    call = draw(st.one_of(call_objects(), call_objects(), st.lists(call_objects(), max_size=3)))
    text = json.dumps(call, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 0, 2])))
    opening, ending = draw(
        st.sampled_from([("", ""), ("", ""), ("```json\n", "\n```"), ("```", "```"), ("```js\n", "```")])
    )
    return draw(spaces) + opening + text + ending + draw(spaces)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Texts like calls, some of them damaged."""
    text = draw(call_texts())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3]))):
        at = draw(st.integers(0, len(text)))
        new = draw(st.text(alphabet=SPECIAL_CHARACTERS + "`{}[]:,1x ", max_size=2))
        text = text[:at] + new + text[at + draw(st.integers(0, 2)) :]
    return text or "x"


def expected_calls(text: str) -> list[tuple[str, Any]] | None:
    """The calls that a text is, by another parser."""
    value = r"(\{.*\}|\[.*\])"
    found = re.fullmatch(rf"\s*(?:```(?:json)?\s*{value}\s*```|{value})\s*", text, re.DOTALL)
    if found is None:
        return None

    def unique(pairs: list[tuple[str, Any]]) -> Any:  # noqa: ANN401 - any JSON value
        return None if len(dict(pairs)) < len(pairs) and {"name", "type"} & {key for key, _ in pairs} else dict(pairs)

    try:
        call = json.loads(found[1] or found[2], object_pairs_hook=unique)
        json.dumps(call, ensure_ascii=False, allow_nan=False).encode()  # no lone surrogates, infinity or NaN
    except ValueError:
        return None
    calls = [_expected_call(one) for one in (call if isinstance(call, list) else [call])]
    return [one for one in calls if one is not None] if calls and None not in calls else None


def _expected_call(call: object) -> tuple[str, Any] | None:
    if not isinstance(call, dict) or set(call) - {"type"} not in ({"name", "arguments"}, {"name", "parameters"}):
        return None
    if call.get("type", "function") != "function":
        return None
    given_arguments = call.get("arguments", call.get("parameters"))
    if call["name"] not in ("get", "any") or not isinstance(given_arguments, dict):
        return None
    return (call["name"], given_arguments) if call["name"] == "any" or "city" in given_arguments else None


def converted(pieces: list[str], *, has_logprobs: bool = False) -> CollectedChoice:
    assert TOOLS is not None
    converter = JsonCallConverter(TOOLS, lambda: "call_1", RepairLog())
    events: list[Event] = [ChoiceStart(0)]
    for piece in pieces:
        events += [Logprobs(0, {"content": [{"token": piece}]})] if has_logprobs else []
        events.append(Text(0, piece))
    out = [one for event in [*events, Finish(0, "stop")] for one in converter.feed([event])]
    if not converter.count:
        assert out == [*events, Finish(0, "stop")]
    return collect(out).choices[0]


@given(texts(), st.lists(st.integers(1, 200), max_size=6), st.booleans())
def test_only_a_whole_call_is_converted_however_it_is_split(text: str, cuts: list[int], has_logprobs: bool) -> None:
    ends = [*sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    calls = expected_calls(text)
    answers = [converted(split, has_logprobs=has_logprobs) for split in (pieces, list(text), [text])]
    if calls is None:
        assert [answer.text for answer in answers] == [text] * 3
        return
    for answer in answers:
        assert [(found.name, json.loads(found.arguments)) for found in answer.tool_calls] == calls
        assert all(found.arguments in text for found in answer.tool_calls)
        assert (answer.text, answer.finish_reason, answer.logprobs) == ("", "tool_calls", None)
