"""Every recorded reply of a chat server, read by clients of the Responses and the Messages API through the gateway."""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import pytest

from tests.clients.cases import Case, is_object, recorded_cases
from tests.clients.client import Client, Program
from tests.clients.play import playing
from tests.clients.programs.job import Job, Saw
from tests.clients.readers import NO_ERROR, parsed
from tests.clients.speakers import AGENTS, AI_SDK, SPEAKERS, Speaker
from tests.live.server import Running, serving

pytestmark = pytest.mark.tier3

# These ask for more than they are told to, or object to calls that they did not offer.
READERS = [speaker for speaker in SPEAKERS if speaker.program not in (AGENTS, AI_SDK)]
CASES = [case for case in recorded_cases() if case.endpoint == "chat" and not case.wants_choices]
ENDS = {
    "responses": {"length": "incomplete", "content_filter": "incomplete"},
    "messages": {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"},
}
"""What a finish reason of chat is called; a Response is completed where nothing else is said."""

# So says the helper of anthropic for Python of arguments that begin as no object does.
OBJECTION = "ValueError: Unable to parse tool parameter JSON"

GATEWAY = """
[upstreams.recorded]
url = "{url}"
models = ["*"]
probe_s = 0    # it answers nothing but requests
"""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = tmp_path_factory.mktemp("gateway") / "welldone.toml"
    with playing({case.name: case.reply for case in CASES}) as url:
        config.write_text(GATEWAY.format(url=url))
        with serving(["--config", str(config)], is_awaited=False) as running:
            yield running


@pytest.mark.parametrize("speaker", READERS, ids=lambda speaker: speaker.name)
def test_a_client_shows_what_the_server_sent(
    front: Running, client_of: Callable[[Program], Client], speaker: Speaker
) -> None:
    client = client_of(speaker.program)
    wrong = {}
    for case in CASES:
        for way in ("stream", "helper") if case.is_stream else ("whole",):
            saw = client.ask(
                Job(
                    scenario="answer",
                    base_url=front.url,
                    model=case.name,
                    key=front.key or "none",
                    endpoint=speaker.endpoint,
                    way=way,
                )
            )
            if complaint := _what_is_wrong(case, speaker, way, saw):
                wrong[f"{case.name}, {way}"] = complaint
    assert wrong == {}


def _what_is_wrong(case: Case, speaker: Speaker, way: str, saw: Saw) -> str | None:
    """In a few words; None where the client shows what the server sent, or an error where the server failed."""
    if case.is_failure:
        return None if saw["error"] else NO_ERROR
    (sent,) = case.choices
    calls = sent.calls
    if speaker.endpoint == "messages" and way == "whole":
        calls = [call for call in sent.calls if is_object(call[1])]  # others have no form in a message
    if len(calls) < len(sent.calls) and sent.finish not in ("length", "content_filter"):
        return None if saw["error"] else NO_ERROR
    if saw["error"]:
        is_objection = case.is_arguable and saw["error"].startswith(OBJECTION)
        return None if is_objection else str(saw["error"])
    text = "".join(saw["pieces"])
    if text != sent.text:
        return f"shows {text!r} for {sent.text!r}"
    wrong = [(mine, theirs) for mine, theirs in zip_longest(saw["calls"], calls) if not _is_same(speaker, mine, theirs)]
    if wrong:
        return f"shows other calls: {wrong}"
    end = _end(speaker, sent.finish, has_calls=bool(sent.calls))
    if saw["finish"] != end:
        return f"ends with {saw['finish']!r}, not {end!r}"
    return None if case.usage in (None, saw["usage"]) else f"counts {saw['usage']}, not {case.usage}"


def _is_same(speaker: Speaker, mine: list[Any] | None, theirs: list[Any] | None) -> bool:
    if mine is None or theirs is None:
        return False
    # What is given to a tool is an object in Messages. Arguments that are none cannot be said there.
    is_sayable = speaker.endpoint != "messages" or is_object(theirs[1])
    return mine[0] == theirs[0] and (mine[1] == parsed(theirs[1]) or not is_sayable)


def _end(speaker: Speaker, finish: str | None, *, has_calls: bool) -> str:
    if has_calls and finish == "stop":  # as chat says it of a call that was asked for by name
        finish = "tool_calls"
    return ENDS[speaker.endpoint].get(finish or "", "completed")
