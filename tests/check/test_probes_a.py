"""Probes of what is said: text, usage, choices, limits, stop strings, logprobs, and the same without a stream."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from tests.check.serving import BY_NAME, HASTY, Choose, Json, asked_as, body_of, edited, found, outcome, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.probe_client import ServerFacts
from welldone.check.reply import find_special_token
from welldone.check.session import Session
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.reference.choices import MockChoice, truncate_at_stop
from welldone.mock.reference.schemas import MockGenerationRequest
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.protocol.dialects.base import DialectWriter
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Event, Usage

GROUPS = ("text", "usage", "choices", "limits", "stops", "logprobs", "same")
NAMES = [name for name in BY_NAME if name.partition("-")[0] in GROUPS]
REFUSAL = json_reply({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}, 400)
THINKING = ServerFacts(model="ideal-thinking", reasoning_allowance=24)


def _probe(name: str, choose: Choose, facts: ServerFacts | None = None) -> tuple[Session, str]:
    async def work() -> tuple[Session, str]:
        async with serving(choose) as url:
            return await outcome(name, url, facts=facts)

    return run(work())


# ---- servers that break a rule


def _refusing(is_refused: Callable[[Json], bool]) -> Choose:
    """400 to some requests."""
    ideal = ReferenceServer()
    return lambda seen: REFUSAL if is_refused(body_of(seen)) else ideal.answer(seen)


class Leaking(ReferenceServer):
    """Says a special token after each text."""

    def text_for(self, prompt: str) -> str:
        return super().text_for(prompt) + "<|im_end|>"


class Miscounting(ReferenceServer):
    """Counts another number of tokens in a stream."""

    def __init__(self, prompt: int, completion: int) -> None:
        super().__init__()
        self._more = prompt, completion

    def stream(self, writer: DialectWriter, events: list[list[Event]], usage: Usage | None) -> MockReply:
        if usage is not None:
            counts = usage.prompt_tokens + self._more[0], usage.completion_tokens + self._more[1]
            usage = Usage(*counts, sum(counts), {})
        return super().stream(writer, events, usage)


class CountingOne(ReferenceServer):
    """Counts the tokens of the first choice only."""

    def usage(self, endpoint: Endpoint, choices: list[MockChoice], prompt_tokens: int) -> Usage:
        return super().usage(endpoint, choices[:1], prompt_tokens)


class GivingOne(ReferenceServer):
    """Gives one choice, whatever is asked."""

    def render(
        self, endpoint: Endpoint, request: MockGenerationRequest, choices: list[MockChoice], prompt_tokens: int
    ) -> MockReply:
        return super().render(endpoint, request, choices[:1], prompt_tokens)


class Stopping(ReferenceServer):
    """Sends some characters of the stop string that ends a text."""

    def __init__(self, *, characters: int) -> None:
        super().__init__()
        self._characters = characters

    def apply_stop_strings(self, choice: MockChoice, stops: list[str]) -> MockChoice:
        right = truncate_at_stop(choice, stops)
        if right == choice:
            return choice
        text, before = "".join(choice.text), len("".join(right.text))
        stop = next(stop for stop in stops if text.startswith(stop, before))
        return msgspec.structs.replace(right, text=(*right.text, stop[: self._characters]))


class Withholding(ReferenceServer):
    """Never sends what it held back for a stop string that was not completed."""

    def apply_stop_strings(self, choice: MockChoice, stops: list[str]) -> MockChoice:
        text = "".join(choice.text)
        held = next((size for size in (3, 2, 1) if any(stop.startswith(text[-size:]) for stop in stops)), 0)
        right = truncate_at_stop(choice, stops)
        return right if right != choice or not held else msgspec.structs.replace(choice, text=(text[:-held],))


def _part(chunk: Json) -> Json:
    """The first choice of a chunk; an empty one where there is none."""
    return chunk["choices"][0] if chunk.get("choices") else {}


def _says_stop(_: Json, said: Json) -> Json:
    for choice in said["choices"]:
        choice["finish_reason"] = choice["finish_reason"] and "stop"
    return said


def _without_second_role(_: Json, said: Json) -> Json:
    for choice in said["choices"]:
        if choice["index"] == 1:
            choice.get("delta", choice.get("message", {})).pop("role", None)
    return said


def _without_second_text(_: Json, said: Json) -> Json:
    for choice in said["choices"]:
        holder = choice.get("delta", choice.get("message", {}))
        if choice["index"] == 1 and "content" in holder:
            holder["content"] = ""
    return said


def _without_second_reason(_: Json, said: Json) -> Json | None:
    part = _part(said)
    return None if part.get("index") == 1 and part.get("finish_reason") else said


def _is_cut_short(request: Json) -> bool:
    return isinstance(request.get("stop"), str)


def _without_empty_role(request: Json, said: Json) -> Json | None:
    return None if _is_cut_short(request) and "role" in _part(said).get("delta", {}) else said


def _without_empty_reason(request: Json, said: Json) -> Json | None:
    return None if _is_cut_short(request) and _part(said).get("finish_reason") else said


def _without_a_chunk(_: Json, said: Json) -> Json | None:
    return None if _part(said).get("delta", {}).get("content") == " can" else said


def _stripped(_: Json, said: Json) -> Json:
    message = _part(said).get("message")
    if message:
        message["content"] = " ".join(message["content"].split(" ")[1:])
    return said


def _drop(*names: str) -> Callable[[Json], object]:
    return lambda request: [request.pop(name, None) for name in names]


def _drop_stop(kind: type) -> Callable[[Json], object]:
    return lambda request: request.pop("stop") if isinstance(request.get("stop"), kind) else None


def _has_option(name: str) -> Callable[[Json], bool]:
    return lambda request: name in (request.get("stream_options") or {})


BREAKS: dict[str, tuple[str, str, Callable[[], Choose]]] = {
    **{f"a special token in {name}": (name, "live-no-special-tokens", lambda: Leaking().answer) for name in NAMES[:4]},
    "usage cannot be asked for": ("usage", "req-stream-options", lambda: _refusing(_has_option("include_usage"))),
    "an unknown option": ("usage-options", "req-stream-options", lambda: _refusing(_has_option("welldone_unknown"))),
    "an unknown option of completions": (
        "usage-completions",
        "req-stream-options",
        lambda: _refusing(_has_option("include_obfuscation")),
    ),
    "another count of the prompt": ("usage-same", "use-whole-request", lambda: Miscounting(1, 0).answer),
    "another count of the answer": ("usage-same", "use-whole-request", lambda: Miscounting(0, 1).answer),
    "another count in completions": ("usage-same-completions", "use-whole-request", lambda: Miscounting(0, 2).answer),
    "one choice counted": ("choices", "use-whole-request", lambda: CountingOne().answer),
    "one choice counted, whole": ("choices-whole", "use-whole-request", lambda: CountingOne().answer),
    "one choice given": ("choices", "n-refuse-if-unsupported", lambda: GivingOne().answer),
    "one choice given, whole": ("choices-whole", "n-refuse-if-unsupported", lambda: GivingOne().answer),
    "a choice without text": (
        "choices",
        "n-each-complete",
        lambda: edited(ReferenceServer().answer, _without_second_text),
    ),
    "a choice without text, whole": (
        "choices-whole",
        "n-each-complete",
        lambda: edited(ReferenceServer().answer, _without_second_text),
    ),
    "stop for length": ("limits", "fin-length", lambda: edited(ReferenceServer().answer, _says_stop)),
    "stop for length, whole": ("limits-whole", "fin-length", lambda: edited(ReferenceServer().answer, _says_stop)),
    "a limit's new name refused": (
        "limits",
        "req-max-tokens-both",
        lambda: _refusing(lambda request: "max_completion_tokens" in request),
    ),
    "a limit's new name ignored": (
        "limits",
        "req-max-tokens-both",
        lambda: asked_as(ReferenceServer(gap_s=0.001).answer, _drop("max_completion_tokens")),
    ),
    "a limit's old name ignored": (
        "limits",
        "req-max-tokens-both",
        lambda: asked_as(ReferenceServer(gap_s=0.001).answer, _drop("max_tokens")),
    ),
    "a stop string sent": ("stops", "live-stop-not-leaked", lambda: Stopping(characters=9).answer),
    "a part of a stop string sent": ("stops", "live-stop-not-leaked", lambda: Stopping(characters=1).answer),
    "a stop string of completions sent": (
        "stops-completions",
        "live-stop-not-leaked",
        lambda: Stopping(characters=2).answer,
    ),
    "held back for ever": ("stops-unfinished", "live-stop-holdback-flushed", lambda: Withholding().answer),
    "held back for ever in completions": (
        "stops-completions",
        "live-stop-holdback-flushed",
        lambda: Withholding().answer,
    ),
    "stop null refused": (
        "stops",
        "req-stop-forms",
        lambda: _refusing(lambda request: request.get("stop", "") is None),
    ),
    "stop as a list refused": (
        "stops",
        "req-stop-forms",
        lambda: _refusing(lambda request: isinstance(request.get("stop"), list)),
    ),
    "stop as a string refused": ("stops", "req-stop-forms", lambda: _refusing(_is_cut_short)),
    "stop as a list ignored": ("stops", "req-stop-forms", lambda: asked_as(ReferenceServer().answer, _drop_stop(list))),
    "a chunk lost": ("same", "delta-concat-equals-full", lambda: edited(ReferenceServer().answer, _without_a_chunk)),
    "a word lost without stream": (
        "same",
        "delta-concat-equals-full",
        lambda: edited(ReferenceServer().answer, _stripped),
    ),
}
"""A way to break a rule: the probe that must hear it, the rule, and the server."""
BREAKS_MORE: dict[str, tuple[str, str, Callable[[], Choose]]] = {
    "a choice without role": (
        "choices",
        "n-each-complete",
        lambda: edited(ReferenceServer().answer, _without_second_role),
    ),
    "a choice without role, whole": (
        "choices-whole",
        "n-each-complete",
        lambda: edited(ReferenceServer().answer, _without_second_role),
    ),
    "a choice without a reason": (
        "choices",
        "n-each-complete",
        lambda: edited(ReferenceServer().answer, _without_second_reason),
    ),
    "nothing without its role": (
        "stops-empty",
        "live-empty-generation",
        lambda: edited(ReferenceServer().answer, _without_empty_role),
    ),
    "nothing without its reason": (
        "stops-empty",
        "live-empty-generation",
        lambda: edited(ReferenceServer().answer, _without_empty_reason),
    ),
    "stop as a string ignored": (
        "stops",
        "live-stop-not-leaked",
        lambda: asked_as(ReferenceServer().answer, _drop_stop(str)),
    ),
}
"""Those that break a rule of a single stream as well."""


@table("name", NAMES)
def test_a_right_server_is_found_right(name: str) -> None:
    talk, why = _probe(name, ReferenceServer().answer)
    assert (found(talk), why, talk.inapplicable) == (set(), "", {})
    assert talk.judged >= {*BY_NAME[name].rules}


@table("name", NAMES)
def test_a_model_that_thinks_is_found_right(name: str) -> None:
    talk, why = _probe(name, ReferenceServer(models=("ideal-thinking",)).answer, THINKING)
    assert (found(talk), why) == (set(), "")


@table(("name", "rule", "server"), BREAKS.values(), ids=BREAKS)
def test_a_broken_rule_is_found_and_no_other(name: str, rule: str, server: Callable[[], Choose]) -> None:
    talk, _ = _probe(name, server())
    assert found(talk) == {rule}
    assert all(finding.observed and finding.expected for finding in talk.violations)


@table(("name", "rule", "server"), BREAKS_MORE.values(), ids=BREAKS_MORE)
def test_a_broken_rule_is_found_among_others(name: str, rule: str, server: Callable[[], Choose]) -> None:
    talk, _ = _probe(name, server())
    assert rule in found(talk)


def test_each_rule_that_a_probe_names_has_a_server_that_breaks_it() -> None:
    broken = {(name, rule) for name, rule, _ in (*BREAKS.values(), *BREAKS_MORE.values())}
    assert {(name, rule) for name in NAMES for rule in BY_NAME[name].rules} <= broken


class Unsteady(ReferenceServer):
    """Says something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers_said = count()

    def text_for(self, prompt: str) -> str:
        number = next(self._numbers_said)
        return f"{number}: one, two, three and {number} more words in a row"


@table("name", NAMES)
def test_a_model_that_never_repeats_itself_breaks_no_rule(name: str) -> None:
    talk, _ = _probe(name, Unsteady().answer)
    assert found(talk) == set()


@table("name", ["same", "stops", "stops-unfinished", "stops-completions"])
def test_who_cannot_be_compared_is_not_called_right(name: str) -> None:
    talk, why = _probe(name, Unsteady().answer)
    rules = {*BY_NAME[name].rules} - {"req-stop-forms"}
    assert why or talk.inapplicable.keys() >= rules


class Silent(ReferenceServer):
    """Says nothing."""

    def text_for(self, prompt: str) -> str:
        return ""


@table("name", NAMES)
def test_an_answer_without_words_breaks_no_rule(name: str) -> None:
    talk, _ = _probe(name, Silent().answer)
    assert found(talk) == set()


ODD = {
    "half characters": "\ud83d" * 40,
    "lines": "\n" * 60,
    "controls": "\x01\x02" * 30,
    "repeats": "aaaa" * 20,
    "wide": "你好" * 30,
    "spaces": " x " * 30,
}


@table("text", ODD.values(), ids=ODD)
def test_odd_texts_make_no_trouble(text: str) -> None:
    def change(_: Json, said: Json) -> Json:
        for choice in said["choices"]:
            for holder in (choice, choice.get("delta", {}), choice.get("message", {})):
                for name in ("text", "content"):
                    if holder.get(name):
                        holder[name] = text
        return said

    for name in NAMES:
        _probe(name, edited(ReferenceServer().answer, change))


def test_choices_that_are_refused_are_not_offered_and_that_is_right() -> None:
    talk, why = _probe("choices", _refusing(lambda request: request.get("n") == 2))
    assert why == "400: no"
    assert "n-refuse-if-unsupported" in talk.judged
    assert found(talk) == set()


def test_logprobs_that_do_not_come_are_not_heard() -> None:
    _, why = _probe("logprobs", asked_as(ReferenceServer().answer, _drop("logprobs", "top_logprobs")))
    assert why == "asked for logprobs, none came"


def test_completions_that_are_not_there_are_not_offered() -> None:
    def choose(seen: MockHttpRequest) -> MockReply:
        return (
            ReferenceServer().answer(seen)
            if seen.path.endswith("/chat/completions")
            else msgspec.structs.replace(REFUSAL, status=404)
        )

    for name in ("usage-completions", "usage-same-completions", "stops-completions"):
        talk, why = _probe(name, choose)
        assert (found(talk), why) == (set(), "404: no")


def test_who_wants_the_new_name_of_the_limit_is_asked_by_it() -> None:
    facts = ServerFacts(model="ideal", limit_field="max_completion_tokens")
    talk, why = _probe("limits", _refusing(lambda request: "max_tokens" in request), facts)
    assert (found(talk), why) == ({"req-max-tokens-both"}, "")
    assert "fin-length" in talk.judged


def test_an_answer_that_goes_on_is_left() -> None:
    talk, _ = _probe("limits", asked_as(ReferenceServer(gap_s=0.001).answer, _drop("max_completion_tokens")))
    assert [reply.recording.is_aborted for reply in talk.replies] == [False, True]


HEAVY = {"endless", "gzip-bomb", "long-line"}
"""Each of them takes a while to judge: two probes must do."""


async def _ask_all(choose: Choose, names: list[str]) -> None:
    async with serving(choose, speed=0) as url:
        await asyncio.gather(*(outcome(name, url, HASTY) for name in names))


@table("fault", sorted(FAULT_REPLIES))
def test_no_fault_of_a_server_makes_a_probe_fail(fault: str) -> None:
    run(_ask_all(lambda seen: FAULT_REPLIES[fault], ["text", "limits"] if fault in HEAVY else NAMES))


SHAPES: list[Any] = [None, 7, "x", [], {}, [[]], [None], {"choices": 7}, {"choices": [7, None, {}]}]
MEMBERS = [{"choices": [{"index": "0", "delta": 7, "message": [], "text": {}, "finish_reason": {}, "logprobs": 3}]}]


@table("shape", [*SHAPES, *MEMBERS])
def test_no_shape_of_a_reply_makes_a_probe_fail(shape: Any) -> None:  # noqa: ANN401 - any JSON
    run(_ask_all(lambda seen: json_reply(shape), NAMES))


@table(
    "text",
    [
        "Hello<|im_end|>",
        "<|im_start|>assistant\nHello",
        "Hello<|endoftext|>",
        "Hello<|eot_id|>",
        "<|start_header_id|>",
        "Hello</s>",
        "<s>Hello",
        "Hello<end_of_turn>\n",
        "<start_of_turn>model",
        "[INST] Hi [/INST]",
        "Hello<eos>",
        "Hello<\uff5cend\u2581of\u2581sentence\uff5c>",
    ],
)
def test_a_special_token_is_seen(text: str) -> None:
    assert find_special_token(text) is not None


@table("text", ["", "Hello!", "a <s>struck</s> word", "a <| b |> c", "[INSTALL]", "<|>", "1 <2> |3|"])
def test_what_only_looks_like_a_special_token_is_none(text: str) -> None:
    assert find_special_token(text) is None
