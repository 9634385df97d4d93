"""Probes of text, usage, choices, token limits, stop strings, logprobs, and equality of streamed and buffered replies.

Each is run against a correct server, and against servers that break one rule.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from tests.check.serving import (
    PROBES_BY_NAME,
    SHORT_TIMEOUTS,
    Handler,
    Json,
    broken_rules,
    outcome,
    request_json,
    rewriting_reply,
    rewriting_request,
    serving,
)
from tests.http.aio import run
from tests.table import table
from welldone.check.probe_client import ServerFacts
from welldone.check.reply import SPECIAL_TOKENS
from welldone.check.session import Session
from welldone.core.answer_format import DialectWriter, TranslatedFormat
from welldone.core.envelope import Endpoint
from welldone.core.events import Event, Usage
from welldone.mock.reference.choices import MockChoice, truncate_at_stop
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES
from welldone.schemas.chat import GenerationBody

GROUPS = ("text", "usage", "choices", "limits", "stops", "logprobs", "same")
NAMES = [name for name in PROBES_BY_NAME if name.partition("-")[0] in GROUPS]
REFUSAL = json_reply({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}, 400)
THINKING = ServerFacts(model="ideal-thinking", reasoning_allowance=24)


def _probe(name: str, handler: Handler, facts: ServerFacts | None = None) -> tuple[Session, str]:
    async def work() -> tuple[Session, str]:
        async with serving(handler) as url:
            return await outcome(name, url, facts=facts)

    return run(work())


# ---- servers that break a rule


def _refusing(is_refused: Callable[[Json], bool]) -> Handler:
    """A server that refuses some requests with 400."""
    ideal = ReferenceServer()
    return lambda http_request: REFUSAL if is_refused(request_json(http_request)) else ideal.answer(http_request)


class Leaking(ReferenceServer):
    """Sends a special token after each text."""

    def text_for(self, prompt: str) -> str:
        return super().text_for(prompt) + "<|im_end|>"


class Miscounting(ReferenceServer):
    """Sends wrong token counts in streams."""

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
    """Sends one choice, whatever `n` is."""

    def render(
        self,
        endpoint: Endpoint,
        request: GenerationBody,
        choices: list[MockChoice],
        prompt_tokens: int,
        dialect: TranslatedFormat | None = None,
    ) -> MockReply:
        return super().render(endpoint, request, choices[:1], prompt_tokens, dialect)


class Stopping(ReferenceServer):
    """Sends the first characters of the stop string that ends a text."""

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
    """Does not send text that was held back for an incomplete stop string."""

    def apply_stop_strings(self, choice: MockChoice, stops: list[str]) -> MockChoice:
        text = "".join(choice.text)
        held = next((size for size in (3, 2, 1) if any(stop.startswith(text[-size:]) for stop in stops)), 0)
        right = truncate_at_stop(choice, stops)
        return right if right != choice or not held else msgspec.structs.replace(choice, text=(text[:-held],))


def _part(chunk: Json) -> Json:
    """The first choice of a chunk, or an empty object."""
    return chunk["choices"][0] if chunk.get("choices") else {}


def _says_stop(_: Json, data: Json) -> Json:
    for choice in data["choices"]:
        choice["finish_reason"] = choice["finish_reason"] and "stop"
    return data


def _without_second_role(_: Json, data: Json) -> Json:
    for choice in data["choices"]:
        if choice["index"] == 1:
            choice.get("delta", choice.get("message", {})).pop("role", None)
    return data


def _without_second_text(_: Json, data: Json) -> Json:
    for choice in data["choices"]:
        holder = choice.get("delta", choice.get("message", {}))
        if choice["index"] == 1 and "content" in holder:
            holder["content"] = ""
    return data


def _without_second_reason(_: Json, data: Json) -> Json | None:
    part = _part(data)
    return None if part.get("index") == 1 and part.get("finish_reason") else data


def _is_cut_short(request: Json) -> bool:
    return isinstance(request.get("stop"), str)


def _without_empty_role(request: Json, data: Json) -> Json | None:
    return None if _is_cut_short(request) and "role" in _part(data).get("delta", {}) else data


def _without_empty_reason(request: Json, data: Json) -> Json | None:
    return None if _is_cut_short(request) and _part(data).get("finish_reason") else data


def _without_a_chunk(_: Json, data: Json) -> Json | None:
    return None if _part(data).get("delta", {}).get("content") == " can" else data


def _stripped(_: Json, data: Json) -> Json:
    message = _part(data).get("message")
    if message:
        message["content"] = " ".join(message["content"].split(" ")[1:])
    return data


def _drop(*names: str) -> Callable[[Json], object]:
    return lambda request: [request.pop(name, None) for name in names]


def _drop_stop(kind: type) -> Callable[[Json], object]:
    return lambda request: request.pop("stop") if isinstance(request.get("stop"), kind) else None


def _has_option(name: str) -> Callable[[Json], bool]:
    return lambda request: name in (request.get("stream_options") or {})


BREAKS: dict[str, tuple[str, str, Callable[[], Handler]]] = {
    **{f"a special token in {name}": (name, "live-no-special-tokens", lambda: Leaking().answer) for name in NAMES[:4]},
    "include_usage refused": ("usage", "req-stream-options", lambda: _refusing(_has_option("include_usage"))),
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
        lambda: rewriting_reply(ReferenceServer().answer, _without_second_text),
    ),
    "a choice without text, whole": (
        "choices-whole",
        "n-each-complete",
        lambda: rewriting_reply(ReferenceServer().answer, _without_second_text),
    ),
    "stop for length": ("limits", "fin-length", lambda: rewriting_reply(ReferenceServer().answer, _says_stop)),
    "stop for length, whole": (
        "limits-whole",
        "fin-length",
        lambda: rewriting_reply(ReferenceServer().answer, _says_stop),
    ),
    "a limit's new name refused": (
        "limits",
        "req-max-tokens-both",
        lambda: _refusing(lambda request: "max_completion_tokens" in request),
    ),
    "a limit's new name ignored": (
        "limits",
        "req-max-tokens-both",
        lambda: rewriting_request(ReferenceServer(gap_s=0.001).answer, _drop("max_completion_tokens")),
    ),
    "a limit's old name ignored": (
        "limits",
        "req-max-tokens-both",
        lambda: rewriting_request(ReferenceServer(gap_s=0.001).answer, _drop("max_tokens")),
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
    "stop as a list ignored": (
        "stops",
        "req-stop-forms",
        lambda: rewriting_request(ReferenceServer().answer, _drop_stop(list)),
    ),
    "a chunk lost": (
        "same",
        "delta-concat-equals-full",
        lambda: rewriting_reply(ReferenceServer().answer, _without_a_chunk),
    ),
    "a word lost without stream": (
        "same",
        "delta-concat-equals-full",
        lambda: rewriting_reply(ReferenceServer().answer, _stripped),
    ),
}
"""Violations: the probe that must find it, the rule, and the server."""
BREAKS_MORE: dict[str, tuple[str, str, Callable[[], Handler]]] = {
    "a choice without role": (
        "choices",
        "n-each-complete",
        lambda: rewriting_reply(ReferenceServer().answer, _without_second_role),
    ),
    "a choice without role, whole": (
        "choices-whole",
        "n-each-complete",
        lambda: rewriting_reply(ReferenceServer().answer, _without_second_role),
    ),
    "a choice without a reason": (
        "choices",
        "n-each-complete",
        lambda: rewriting_reply(ReferenceServer().answer, _without_second_reason),
    ),
    "nothing without its role": (
        "stops-empty",
        "live-empty-generation",
        lambda: rewriting_reply(ReferenceServer().answer, _without_empty_role),
    ),
    "nothing without its reason": (
        "stops-empty",
        "live-empty-generation",
        lambda: rewriting_reply(ReferenceServer().answer, _without_empty_reason),
    ),
    "stop as a string ignored": (
        "stops",
        "live-stop-not-leaked",
        lambda: rewriting_request(ReferenceServer().answer, _drop_stop(str)),
    ),
}
"""Violations that break a rule about single replies as well."""


@table("name", NAMES)
def test_a_correct_server_breaks_no_rule(name: str) -> None:
    session, reason = _probe(name, ReferenceServer().answer)
    assert (broken_rules(session), reason, session.inapplicable) == (set(), "", {})
    assert set(session.judged) >= {*PROBES_BY_NAME[name].rules}


@table("name", NAMES)
def test_a_reasoning_model_breaks_no_rule(name: str) -> None:
    session, reason = _probe(name, ReferenceServer(models=("ideal-thinking",)).answer, THINKING)
    assert (broken_rules(session), reason) == (set(), "")


@table(("name", "rule", "server"), BREAKS.values(), ids=BREAKS)
def test_only_the_broken_rule_is_found(name: str, rule: str, server: Callable[[], Handler]) -> None:
    session, _ = _probe(name, server())
    assert broken_rules(session) == {rule}
    assert all(finding.observed and finding.expected for finding in session.violations)


@table(("name", "rule", "server"), BREAKS_MORE.values(), ids=BREAKS_MORE)
def test_a_broken_rule_is_found_among_others(name: str, rule: str, server: Callable[[], Handler]) -> None:
    session, _ = _probe(name, server())
    assert rule in broken_rules(session)


def test_each_rule_of_a_probe_has_a_server_that_breaks_it() -> None:
    broken = {(name, rule) for name, rule, _ in (*BREAKS.values(), *BREAKS_MORE.values())}
    assert {(name, rule) for name in NAMES for rule in PROBES_BY_NAME[name].rules} <= broken


class Unsteady(ReferenceServer):
    """Sends a different text each time."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def text_for(self, prompt: str) -> str:
        number = next(self._numbers)
        return f"{number}: one, two, three and {number} more words in a row"


@table("name", NAMES)
def test_a_model_with_varying_answers_breaks_no_rule(name: str) -> None:
    session, _ = _probe(name, Unsteady().answer)
    assert broken_rules(session) == set()


@table("name", ["same", "stops", "stops-unfinished", "stops-completions"])
def test_rules_that_compare_answers_do_not_pass_if_answers_vary(name: str) -> None:
    session, reason = _probe(name, Unsteady().answer)
    rules = {*PROBES_BY_NAME[name].rules} - {"req-stop-forms"}
    assert reason or session.inapplicable.keys() >= rules


class Silent(ReferenceServer):
    """Sends empty texts."""

    def text_for(self, prompt: str) -> str:
        return ""


@table("name", NAMES)
def test_an_empty_answer_breaks_no_rule(name: str) -> None:
    session, _ = _probe(name, Silent().answer)
    assert broken_rules(session) == set()


ODD = {
    "half characters": "\ud83d" * 40,
    "lines": "\n" * 60,
    "controls": "\x01\x02" * 30,
    "repeats": "aaaa" * 20,
    "wide": "你好" * 30,
    "spaces": " x " * 30,
}


@table("text", ODD.values(), ids=ODD)
def test_unusual_texts_do_not_make_a_probe_fail(text: str) -> None:
    def change(_: Json, data: Json) -> Json:
        for choice in data["choices"]:
            for holder in (choice, choice.get("delta", {}), choice.get("message", {})):
                for name in ("text", "content"):
                    if holder.get(name):
                        holder[name] = text
        return data

    async def work() -> None:
        async with serving(rewriting_reply(ReferenceServer().answer, change)) as url:
            for name in NAMES:
                await outcome(name, url)

    run(work())


def test_refusing_n_is_unsupported_and_breaks_no_rule() -> None:
    session, reason = _probe("choices", _refusing(lambda request: request.get("n") == 2))
    assert reason == "400: no"
    assert "n-refuse-if-unsupported" in session.judged
    assert broken_rules(session) == set()


def test_missing_logprobs_are_not_applicable() -> None:
    _, reason = _probe("logprobs", rewriting_request(ReferenceServer().answer, _drop("logprobs", "top_logprobs")))
    assert reason == "logprobs were requested, but the reply has none"


def test_a_missing_completions_endpoint_is_unsupported() -> None:
    def handler(http_request: MockHttpRequest) -> MockReply:
        return (
            ReferenceServer().answer(http_request)
            if http_request.path.endswith("/chat/completions")
            else msgspec.structs.replace(REFUSAL, status=404)
        )

    for name in ("usage-completions", "usage-same-completions", "stops-completions"):
        session, reason = _probe(name, handler)
        assert (broken_rules(session), reason) == (set(), "404: no")


def test_the_accepted_name_of_the_token_limit_is_used() -> None:
    facts = ServerFacts(model="ideal", limit_field="max_completion_tokens")
    session, reason = _probe("limits", _refusing(lambda request: "max_tokens" in request), facts)
    assert (broken_rules(session), reason) == ({"req-max-tokens-both"}, "")
    assert "fin-length" in session.judged


def test_an_answer_beyond_its_limit_is_aborted() -> None:
    session, _ = _probe(
        "limits", rewriting_request(ReferenceServer(gap_s=0.001).answer, _drop("max_completion_tokens"))
    )
    assert [reply.recording.is_aborted for reply in session.replies] == [False, True]


HEAVY = {"endless", "gzip-bomb", "long-line", "slow"}
"""Faults that take long to judge: they run with two probes only."""


async def _run_probes(handler: Handler, names: list[str]) -> None:
    async with serving(handler, speed=0) as url:
        await asyncio.gather(*(outcome(name, url, SHORT_TIMEOUTS) for name in names))


@table("fault", sorted(FAULT_REPLIES))
def test_no_injected_fault_makes_a_probe_fail(fault: str) -> None:
    run(_run_probes(lambda http_request: FAULT_REPLIES[fault], ["text", "limits"] if fault in HEAVY else NAMES))


SHAPES: list[Any] = [None, 7, "x", [], {}, [[]], [None], {"choices": 7}, {"choices": [7, None, {}]}]
MEMBERS = [{"choices": [{"index": "0", "delta": 7, "message": [], "text": {}, "finish_reason": {}, "logprobs": 3}]}]


@table("shape", [*SHAPES, *MEMBERS])
def test_no_json_value_makes_a_probe_fail(shape: Any) -> None:  # noqa: ANN401 - any JSON
    run(_run_probes(lambda http_request: json_reply(shape), NAMES))


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
def test_a_special_token_is_found(text: str) -> None:
    assert SPECIAL_TOKENS.search(text) is not None


@table("text", ["", "Hello!", "a <s>struck</s> word", "a <| b |> c", "[INSTALL]", "<|>", "1 <2> |3|"])
def test_text_that_resembles_a_special_token_is_not_found(text: str) -> None:
    assert SPECIAL_TOKENS.search(text) is None
