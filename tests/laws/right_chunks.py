"""Generator of legal streams and replies of chat and completions.

It draws an answer first, then writes its bytes with the freedom of a server: boundaries of texts, order of choices and
calls, comments, JSON spacing. It imports nothing of welldone.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from tests.laws.plain_client import Answer, Call, Choice

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Contents:
    """Kinds of content that may occur in a stream, for narrowing down a difference."""

    growing: bool = True
    """Texts that extend the previous one."""
    think_tags: bool = True
    parts: bool = True
    """`content` as a list of parts."""
    custom_calls: bool = True
    repeated_ids: bool = True
    """The same call id in several choices."""
    cut_calls: bool = True
    """Truncated arguments, with the finish reason `length`."""
    trailing_space: bool = True
    """White space after the arguments, also when the next call has begun."""


ALL = Contents()

_SPECIAL_CHARACTERS = '\n\r\t"\\{}<>:,\u0085\u2028\u2029\ufeff\u200b\u200d\u00ad\x00\x1b\x7fé漢😀👩\u0301'
_TEXTS = ("The", " answer", " is", " 42", ".", "\n\n", " ", "*", "```", '{"a":', " 1}", "{}", "[", "]", "null", "0")
_FRAMING = ("data: ", "data: [DONE]", "[DONE]", "data: [DONE]\n\n", "event: error", ": ping", "id: 1", "\n\ndata:")
_TAGS = ("<think>", "</think>", "<think>so</think>", "<thi", "nk>", "<tool_call>", "<|im_end|>")
_NAMES = ("get_weather", "get_weather", "put", "a-b", "f")


@dataclass
class Text:
    """Text in the pieces in which it is sent."""

    pieces: list[str] = field(default_factory=list)

    @property
    def full(self) -> str:
        return "".join(self.pieces)


@dataclass
class Drawn:
    """Answer, and its stream and reply."""

    request: Json
    answer: Answer
    """Expected result of a client, with the final value of each unknown member."""
    stream: bytes
    reply: bytes


def texts(draw: Random, contents: Contents, most: int = 6) -> Text:
    """Draw a text."""
    kinds = ["words", "words", "odd", "framing", "repeated", "long", "several"]
    kinds += ["growing"] * contents.growing + ["tags"] * contents.think_tags
    count = draw.randint(0, most)
    match draw.choice(kinds):
        case "odd":
            return Text(["".join(draw.choices(_SPECIAL_CHARACTERS + "ab", k=draw.randint(1, 6))) for _ in range(count)])
        case "framing":
            return Text([draw.choice(_FRAMING) for _ in range(count)])
        case "repeated":
            unit = draw.choice(("ha", " ", "-", "0", "\n", "no ", "ab"))
            if contents.growing:
                return Text([unit * draw.randint(1, 8) for _ in range(count * 2)])
            # Pieces of equal length: longer ones would be a growing text.
            return Text([unit * draw.choice((1, 1, 2))] * (count * 2))
        case "long":
            return Text([draw.choice(("lorem ipsum ", "é漢😀", "x\\", "\n")) * draw.choice((500, 900))] * min(count, 2))
        case "several":
            return Text(["".join(draw.choices(_TEXTS, k=draw.randint(2, 5))) for _ in range(count)])
        case "growing":
            return _growing(draw)
        case "tags":
            return Text([draw.choice(_TAGS + _TEXTS) for _ in range(count)])
        case _:
            return Text([draw.choice(_TEXTS) for _ in range(count)])


def _growing(draw: Random) -> Text:
    """Draw pieces that each extend the previous one, such as `test`, `testing`."""
    drawn_text = draw.choice(("test", "0000", "The", "a", "ab ab "))
    pieces = [drawn_text]
    for _ in range(draw.randint(1, 4)):
        drawn_text += draw.choice(("ing", drawn_text, " cat", "0000", "!"))
        pieces.append(drawn_text)
    return Text(pieces)


def value(draw: Random, depth: int = 0) -> object:
    """Draw a JSON value that every parser reads exactly."""
    kinds = ["null", "bool", "int", "float", "string", "string"] + ["list", "object"] * (depth < 2)
    match draw.choice(kinds):
        case "null":
            return None
        case "bool":
            return draw.random() < 0.5
        case "int":
            return draw.choice((0, 1, -7, 2**31, 2**53 - 1, -(2**53) + 1))
        case "float":
            return draw.choice((0.5, -1.25, 1e-7, 3.0, 1e300))
        case "string":
            return draw.choice(("", "x", "é\u2028", "data: [DONE]", '{"a":1}', "<think>", "null"))
        case "list":
            return [value(draw, depth + 1) for _ in range(draw.randint(0, 2))]
        case _:
            return {draw.choice("abcé"): value(draw, depth + 1) for _ in range(draw.randint(0, 2))}


@dataclass
class Member:
    """Unknown member: its values in the order sent, and its value in a reply."""

    name: str
    values: list[Any]
    final: Any
    is_delta: bool = False


def _constant(name: str, json_value: object, times: int) -> Member:
    return Member(name, [json_value] * times, json_value)


def chunk_members(draw: Random) -> list[Member]:
    """Draw top-level members of chunks: the last value counts; a list that repeats or grows is one list."""
    found: list[Member] = []
    sites = [f"https://{letter}.example/?q=1" for letter in "abc"]
    if draw.random() < 0.3:
        found.append(_constant("citations", sites, 40))
    elif draw.random() < 0.3:
        found.append(Member("citations", [sites[:1], sites[:2], sites, sites], sites))
    if draw.random() < 0.2:
        results = [{"title": site, "url": site, "date": None} for site in sites]
        found.append(Member("search_results", [results[:1], results], results))
    if draw.random() < 0.3:
        found.append(_constant("provider", draw.choice(("Fireworks", "é")), 40))
    if draw.random() < 0.3:
        json_value = value(draw)
        found.append(
            _constant("x_any", json_value, draw.randint(1, 3))
            if not isinstance(json_value, list)
            else Member("x_any", [json_value], json_value)
        )
    if draw.random() < 0.2:
        found.append(_constant("service_tier", draw.choice(("default", "flex")), 40))
    if draw.random() < 0.2:
        found.append(Member("x_seen", [1, None, 2.5], 2.5))
    return found


def choice_members(draw: Random) -> list[Member]:
    """Draw members of a choice: the last value counts; lists of numbers are appended."""
    found: list[Member] = []
    if draw.random() < 0.3:
        ids = [[draw.randint(0, 3)] for _ in range(draw.randint(1, 4))]
        found.append(Member("token_ids", ids, [number for one in ids for number in one]))
    if draw.random() < 0.2:
        filtered = {"hate": {"filtered": False, "severity": "safe"}}
        found.append(_constant("content_filter_results", filtered, draw.randint(1, 4)))
    if draw.random() < 0.2:
        found.append(_constant("stop_reason", None, 5))
    if draw.random() < 0.2:
        json_value = value(draw)
        found.append(Member("x_choice", [json_value], json_value))
    return found


def delta_members(draw: Random) -> list[Member]:
    """Draw members of a delta, accumulated as in openai-python. No bare numbers, which that client adds."""
    found: list[Member] = []
    if draw.random() < 0.2:
        pieces = [draw.choice(("a", "é", "data: ", "<think>")) for _ in range(draw.randint(1, 3))]
        found.append(Member("x_text", list(pieces), "".join(pieces)))
    if draw.random() < 0.2:
        audio = [{"id": "audio_1", "transcript": "He"}, {"transcript": "l", "data": "AAAA"}, {"data": "BBBB"}]
        found.append(Member("audio", list(audio), {"id": "audio_1", "transcript": "Hel", "data": "AAAABBBB"}))
    if draw.random() < 0.3:
        found.append(_reasoning_details(draw))
    if draw.random() < 0.2:
        annotations = [{"type": "url_citation", "url_citation": {"url": "u", "start_index": 1, "end_index": 2}}]
        found.append(Member("annotations", [annotations], annotations))
    if draw.random() < 0.2:
        json_value = draw.choice((None, True, {"a": None}, ["x", "y"], {"a": [1]}))
        found.append(Member("x_delta", [json_value], json_value))
    return found


def _reasoning_details(draw: Random) -> Member:
    """Draw OpenRouter's reasoning blocks: pieces of a text, a signature, and possibly an encrypted block."""
    label = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    pieces = [draw.choice((" so", "so", "é")) for _ in range(draw.randint(1, 3))]
    values: list[Any] = [[{**label, "text": piece}] for piece in pieces]
    values.append([{**label, "signature": "s1g=="}])
    final: list[Json] = [{**label, "text": "".join(pieces), "signature": "s1g=="}]
    if draw.random() < 0.5:
        secret = {
            "type": "reasoning.encrypted",
            "data": "b64",
            "id": "rs_1",
            "format": "x",
            "index": draw.randint(0, 1),
        }
        values.append([secret])
        final.append(secret)
    return Member("reasoning_details", values, final)


def arguments(draw: Random) -> str:
    """Draw a JSON object in the format of a model."""
    json_value = {draw.choice(("city", "a", "é", "", "path")): value(draw) for _ in range(draw.randint(0, 3))}
    written = json.dumps(json_value, ensure_ascii=draw.random() < 0.5, indent=draw.choice((None, None, 1)))
    return draw.choice(("", "", " ", "\n")) + written


def cut(draw: Random, text: str, most: int = 4) -> list[str]:
    """Split a text into non-empty pieces."""
    cuts = sorted({draw.randint(1, len(text)) for _ in range(draw.randint(0, most))} | {len(text)}) if text else []
    return [text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


@dataclass
class ChoicePlan:
    """Choice, with its deltas and members in order."""

    index: int
    expected: Choice
    deltas: list[Json]
    logprobs: list[Json | None]


def _counted(draw: Random) -> Json:
    """Draw stream options that request usage at the end, or on each chunk (vLLM)."""
    return {"include_usage": True} | ({"continuous_usage_stats": True} if draw.random() < 0.1 else {})


def usages(draw: Random) -> Json:
    """Draw a usage object with members of different providers."""
    prompt, completion = draw.randint(1, 9000), draw.randint(0, 9000)
    usage: Json = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if draw.random() < 0.2:
        usage["total_tokens"] += draw.randint(1, 500)  # reasoning tokens that only the total includes
    if draw.random() < 0.5:
        usage["prompt_tokens_details"] = {"cached_tokens": draw.randint(0, prompt), "audio_tokens": 0}
    if draw.random() < 0.5:
        usage["completion_tokens_details"] = {"reasoning_tokens": draw.randint(0, completion), "x": 3}
    if draw.random() < 0.4:
        usage |= {"cost": 0.00012, "cost_details": {"upstream_inference_cost": None, "a": 1.5, "b": {"c": [1.5]}}}
    if draw.random() < 0.2:
        usage["x_usage"] = value(draw)
    return usage


# Chat.


def chat(draw: Random, contents: Contents = ALL, most_choices: int = 3) -> Drawn:
    """Draw a legal chat answer."""
    count = draw.choice((1, 1, 2, 3)) if most_choices > 1 else 1
    request: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "n": count}
    request["tools"] = [{"type": "function", "function": {"name": name}} for name in set(_NAMES)]
    is_counted = draw.random() < 0.8
    if is_counted:
        request["stream_options"] = _counted(draw)
    is_forced = draw.random() < 0.1
    if is_forced:
        request["tool_choice"] = {"type": "function", "function": {"name": "f"}}
    has_functions = not is_forced and most_choices > 1 and draw.random() < 0.1
    if has_functions:
        request["functions"] = [{"name": name} for name in set(_NAMES)]
        del request["tools"]
    has_logprobs = draw.random() < 0.3
    request |= {"logprobs": True, "top_logprobs": 2} if has_logprobs else {}
    plans = [
        _chat_choice(draw, contents, index, has_logprobs=has_logprobs, is_forced=is_forced) for index in range(count)
    ]
    if has_functions:
        plans = [_with_function(draw, plan) for plan in plans]
    usage = usages(draw) if is_counted else None
    tops = chunk_members(draw)
    envelope = _envelope(draw, "chatcmpl-", "chat.completion.chunk")
    expected = Answer(
        {plan.index: plan.expected for plan in plans},
        [] if usage is None else [usage],
        {member.name: [member.final] for member in tops},
        [[envelope["id"], envelope["created"], "m", envelope.get("system_fingerprint")]],
        is_done=True,
    )
    chunks = list(_chat_chunks(draw, plans, has_nulls=draw.random() < 0.5))
    stream = _stream(draw, request, envelope, chunks, usage, tops)
    reply = {
        **envelope,
        "object": "chat.completion",
        "choices": [_whole_chat_choice(plan.expected, plan.index) for plan in plans],
    }
    reply |= {} if usage is None else {"usage": usage}
    reply |= {member.name: member.final for member in tops}
    return Drawn(request, expected, stream, _json(draw, reply))


def _chat_choice(draw: Random, contents: Contents, index: int, *, has_logprobs: bool, is_forced: bool) -> ChoicePlan:
    expected = Choice()
    deltas: list[Json] = []
    logprobs: list[Json | None] = []

    def add(delta: Json, logprobs_object: Json | None = None) -> None:
        deltas.append(delta)
        logprobs.append(logprobs_object)

    if draw.random() < 0.3:
        drawn_reasoning = texts(draw, contents, 4)
        expected.reasoning = drawn_reasoning.full
        for piece in drawn_reasoning.pieces:
            add({"reasoning_content": piece})
    kind = draw.choice(("text", "text", "text", "refusal", "calls", "text and calls", "nothing"))
    if "text" in kind:
        _add_text(draw, contents, expected, add, has_logprobs=has_logprobs)
    if kind == "refusal":
        _add_refusal(draw, contents, expected, add, has_logprobs=has_logprobs)
    is_cut = False
    if "calls" in kind:
        is_cut = contents.cut_calls and draw.random() < 0.15
        expected.calls = _calls(draw, contents, index, is_cut=is_cut)
        for delta in _call_deltas(draw, expected.calls):
            add(delta)
    if draw.random() < 0.1:
        _add_late(draw, contents, expected, add)
    expected.logprobs = {name: entries for name, entries in expected.logprobs.items() if entries}
    reasons: tuple[str, ...] = ("stop", "stop", "length", "content_filter")
    if expected.calls:
        reasons = ("length",) if is_cut else ("stop",) if is_forced else ("tool_calls", "tool_calls", "length")
    expected.finish = [draw.choice(reasons)]
    _spread_members(expected.members, choice_members(draw), deltas, "choice")
    _spread_members(expected.delta_members, delta_members(draw), deltas, "delta")
    return ChoicePlan(index, expected, deltas, [*logprobs, *[None] * (len(deltas) - len(logprobs))])


def _with_function(draw: Random, plan: ChoicePlan) -> ChoicePlan:
    """Convert the calls of a choice to one deprecated `function_call` without an id."""
    expected = plan.expected
    if not expected.calls:
        return plan
    json_value = arguments(draw)
    expected.calls = [Call("", "function", "f", json_value)]
    expected.finish = ["function_call"]
    drawn_text = iter([{"name": "f", "arguments": ""}, *({"arguments": piece} for piece in cut(draw, json_value))])
    deltas: list[Json] = []
    for delta in plan.deltas:
        # The pieces replace those of the tool calls; other fields of the deltas stay.
        other_fields = {name: delta[name] for name in delta if name != "tool_calls"}
        piece = next(drawn_text, None) if "tool_calls" in delta else None
        deltas.append(other_fields if piece is None else other_fields | {"function_call": piece})
    deltas += [{"function_call": piece} for piece in drawn_text]
    return ChoicePlan(plan.index, expected, deltas, [*plan.logprobs, *[None] * (len(deltas) - len(plan.logprobs))])


_Add: TypeAlias = Callable[[Json, Json | None], None]


def _add_late(draw: Random, contents: Contents, expected: Choice, add: _Add) -> None:
    """Add reasoning or text after the calls."""
    late = texts(draw, contents, 2)
    is_thought = expected.refusal != "" or draw.random() < 0.5
    for piece in late.pieces:
        add({"reasoning_content" if is_thought else "content": piece}, None)
    if is_thought:
        expected.reasoning += late.full
    else:
        expected.text += late.full


def _add_refusal(draw: Random, contents: Contents, expected: Choice, add: _Add, *, has_logprobs: bool) -> None:
    refused = texts(draw, contents, 3)
    expected.refusal = refused.full
    for piece in refused.pieces:
        entries = _entries(draw, piece) if has_logprobs else None
        expected.logprobs.setdefault("refusal", []).extend(entries or [])
        add({"refusal": piece}, None if entries is None else {"content": None, "refusal": entries})


def _add_text(draw: Random, contents: Contents, expected: Choice, add: _Add, *, has_logprobs: bool) -> None:
    drawn_text = texts(draw, contents)
    has_parts = contents.parts and not has_logprobs and draw.random() < 0.15
    expected.text = drawn_text.full
    for piece in drawn_text.pieces:
        entries = _entries(draw, piece) if has_logprobs else None
        expected.logprobs.setdefault("content", []).extend(entries or [])
        content: object = [{"type": "text", "text": piece}] if has_parts else piece
        add({"content": content}, None if entries is None else {"content": entries, "refusal": None})
    for _ in range(draw.randint(0, 2) if has_parts else 0):
        other = draw.choice(({"type": "reference", "reference_ids": [1]}, {"type": "image_url", "image_url": "u"}))
        expected.parts.append(other)
        add({"content": [other]}, None)
    if has_parts and draw.random() < 0.5:
        thought = draw.choice(("so", "é"))
        expected.reasoning += thought
        add({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}]}, None)


def _spread_members(finals: dict[str, list[Any]], members: list[Member], deltas: list[Json], position: str) -> None:
    """Distribute members over the deltas of a choice, with additional deltas if necessary."""
    for member in members:
        while len(deltas) < len(member.values) and member.final is not None and member.values[0] != member.values[-1]:
            deltas.append({})
        while len(deltas) < max(1, len(member.values)) and position == "delta":
            deltas.append({})
        sent = member.values[: len(deltas)]
        if not sent:
            continue
        for delta, json_value in zip(deltas, sent, strict=False):
            delta.setdefault(f"@{position}", {})[member.name] = json_value
        is_numbers = member.name == "token_ids"
        finals[member.name] = [[number for one in sent for number in one] if is_numbers else member.final]


def _entries(draw: Random, text: str) -> list[Json]:
    """Draw log probabilities of a piece."""

    def one(token: str) -> Json:
        raw = list(token.encode()) if draw.random() < 0.8 else None
        return {"token": token, "logprob": draw.choice((-0.5, 0.0, -9999.0, -1)), "bytes": raw}

    entries = []
    for token in cut(draw, text, 2):
        entry = one(token) | {"top_logprobs": [one(token), one("x")] if draw.random() < 0.5 else []}
        entries.append(entry | ({"x_entry": 1} if draw.random() < 0.1 else {}))
    return entries


def _calls(draw: Random, contents: Contents, index: int, *, is_cut: bool) -> list[Call]:
    calls = []
    same = draw.random() < 0.3  # the same call several times
    first = draw.choice(_NAMES), arguments(draw)
    for number in range(draw.randint(1, 4)):
        name, json_value = first if same else (draw.choice(_NAMES), arguments(draw))
        id = f"call_{number}" if contents.repeated_ids and draw.random() < 0.3 else f"call_{index}_{number}"
        members: dict[str, list[Any]] = {}
        if draw.random() < 0.2:
            members["extra_content"] = [{"google": {"thought_signature": "sig=="}}]
        if draw.random() < 0.1:
            members["function.x_function"] = [value(draw)]
        if contents.trailing_space:
            json_value += draw.choice(("", "", "\n", " "))
        if contents.custom_calls and draw.random() < 0.2:
            text = draw.choice(("ls -l", "*** Begin Patch\n", '{"a":', "é", "data: [DONE]"))
            calls.append(Call(id, "custom", draw.choice(_NAMES), text, members))
        else:
            calls.append(Call(id, "function", name, json_value, members))
    if len({call.id for call in calls}) < len(calls):
        for number, call in enumerate(calls):
            call.id = f"call_{index}_{number}"
    last = calls[-1]
    if is_cut and last.type == "function":
        last.text = last.text.rstrip()[:-1]
    return calls


def _call_deltas(draw: Random, calls: list[Call]) -> list[Json]:
    """Deltas of calls, which start in order; later pieces may interleave."""
    queues = []
    for number, call in enumerate(calls):
        holder, text = ("custom", "input") if call.type == "custom" else ("function", "arguments")
        pieces = cut(draw, call.text)
        lead = pieces.pop(0) if pieces and draw.random() < 0.3 else ""
        first: Json = {"index": number, "id": call.id, "type": call.type, holder: {"name": call.name, text: lead}}
        for name, values in call.members.items():
            if name.startswith("function."):
                first[holder][name.removeprefix("function.")] = values[0]
            else:
                first[name] = values[0]
        queues.append([first, *({"index": number, holder: {text: piece}} for piece in pieces)])
    entries: list[Json] = []
    if draw.random() < 0.5:
        begun = 0
        while any(queues):
            ready = [position for position, queue in enumerate(queues) if queue and position <= begun]
            position = draw.choice(ready)
            entries.append(queues[position].pop(0))
            begun = max(begun, position + 1)
    else:
        entries = [entry for queue in queues for entry in queue]
    return [{"tool_calls": [entry]} for entry in entries]


def _chat_chunks(draw: Random, plans: list[ChoicePlan], *, has_nulls: bool) -> Iterator[Json]:
    """Choices of each chunk, which start in order and then interleave."""
    queues: list[list[Json]] = []
    for plan in plans:
        first = {"role": "assistant", "content": ""}
        if plan.deltas and "tool_calls" in plan.deltas[0] and draw.random() < 0.5:
            first["content"] = None  # type: ignore[assignment]  # OpenAI, before a tool call
        begun: Json = {"index": plan.index, "delta": first | ({"refusal": None} if has_nulls else {})}
        if plan.expected.logprobs and draw.random() < 0.5:
            begun["logprobs"] = {"content": [], "refusal": None}  # OpenAI
        chunks = [begun]
        for delta, logprobs_object in zip(plan.deltas, plan.logprobs, strict=True):
            drawn_text = {name: item for name, item in delta.items() if not name.startswith("@")} | delta.get(
                "@delta", {}
            )
            chunk = {"index": plan.index, "delta": drawn_text, **delta.get("@choice", {})}
            chunks.append(chunk | ({} if logprobs_object is None else {"logprobs": logprobs_object}))
        chunks.append({"index": plan.index, "delta": {}, "finish_reason": plan.expected.finish[0]})
        queues.append([({"logprobs": None} if has_nulls else {}) | {"finish_reason": None} | chunk for chunk in chunks])
    for queue in queues:
        yield queue.pop(0)
    is_mixed = draw.random() < 0.7
    while any(queues):
        ready = [queue for queue in queues if queue]
        yield (draw.choice(ready) if is_mixed else ready[0]).pop(0)


def _whole_chat_choice(expected: Choice, index: int) -> Json:
    message: Json = {"role": "assistant", "content": expected.text, "refusal": expected.refusal or None}
    if not expected.text and (expected.calls or expected.refusal):
        message["content"] = None
    if expected.parts:
        message["content"] = [{"type": "text", "text": expected.text}, *expected.parts]
    if expected.reasoning:
        message["reasoning_content"] = expected.reasoning
    if expected.finish == ["function_call"]:
        message["function_call"] = {"name": expected.calls[0].name, "arguments": expected.calls[0].text}
    elif expected.calls:
        message["tool_calls"] = [_whole_call(call) for call in expected.calls]
    message |= {name: values[0] for name, values in expected.delta_members.items()}
    logprobs = {"content": None, "refusal": None} | expected.logprobs if expected.logprobs else None
    choice = {"index": index, "message": message, "logprobs": logprobs, "finish_reason": expected.finish[0]}
    return choice | {name: values[0] for name, values in expected.members.items()}


def _whole_call(call: Call) -> Json:
    """Tool call of a message."""
    holder, text = ("custom", "input") if call.type == "custom" else ("function", "arguments")
    named = {"name": call.name, text: call.text}
    entry: Json = {"id": call.id, "type": call.type, holder: named}
    for name, values in call.members.items():
        (named if name.startswith("function.") else entry)[name.removeprefix("function.")] = values[0]
    return entry


# Completions.


def completions(draw: Random, contents: Contents = ALL) -> Drawn:
    """Draw a legal completions answer."""
    count = draw.choice((1, 1, 2, 3))
    is_counted = draw.random() < 0.8
    request: Json = {"model": "m", "prompt": "x", "stream": True, "n": count}
    request |= {"stream_options": _counted(draw)} if is_counted else {}
    has_logprobs = draw.random() < 0.3
    request |= {"logprobs": 1} if has_logprobs else {}
    envelope = _envelope(draw, "cmpl-", "text_completion")
    meants: dict[int, Choice] = {}
    queues: list[list[Json]] = []
    for index in range(count):
        meants[index], queue = _completions_choice(draw, contents, index, has_logprobs=has_logprobs)
        queues.append(queue)
    usage = usages(draw) if is_counted else None
    tops = chunk_members(draw)
    expected = Answer(
        meants,
        [] if usage is None else [usage],
        {member.name: [member.final] for member in tops},
        [[envelope["id"], envelope["created"], "m", envelope.get("system_fingerprint")]],
        is_done=True,
    )
    chunks = []
    while any(queues):
        chunks.append(draw.choice([queue for queue in queues if queue]).pop(0))
    stream = _stream(draw, request, envelope, chunks, usage, tops)
    choices = [_whole_completions_choice(one, index) for index, one in meants.items()]
    reply = {**envelope, "choices": choices} | ({} if usage is None else {"usage": usage})
    return Drawn(request, expected, stream, _json(draw, reply | {member.name: member.final for member in tops}))


def _completions_choice(
    draw: Random, contents: Contents, index: int, *, has_logprobs: bool
) -> tuple[Choice, list[Json]]:
    drawn_text = texts(draw, contents)
    expected = Choice(drawn_text.full, finish=[draw.choice(("stop", "length", "content_filter"))])
    pieces: list[Json] = [{"text": piece} for piece in drawn_text.pieces]
    offset = 0
    for piece in pieces:
        logprobs_object: Json | None = None
        if has_logprobs:
            tokens = cut(draw, piece["text"], 2)
            offsets = [offset + sum(map(len, tokens[:position])) for position in range(len(tokens))]
            scores = [draw.choice((-0.5, 0.0, -9999.0)) for _ in tokens]
            tops = [{token: -0.5} for token in tokens] if draw.random() < 0.7 else [None] * len(tokens)
            logprobs_object = {"tokens": tokens, "token_logprobs": scores, "top_logprobs": tops, "text_offset": offsets}
            for name, entries in logprobs_object.items():
                expected.logprobs.setdefault(name, []).extend(entries)
        offset += len(piece["text"])
        piece["logprobs"] = logprobs_object
    _spread_members(expected.members, choice_members(draw), pieces, "choice")
    chunks = []
    for piece in [*pieces, {}]:
        plain = {name: item for name, item in piece.items() if not name.startswith("@")}
        chunk = {"text": "", "index": index, "logprobs": None, "finish_reason": None} | plain
        chunks.append(chunk | piece.get("@choice", {}))
    if pieces and draw.random() < 0.5:
        chunks.pop()
    chunks[-1]["finish_reason"] = expected.finish[0]
    return expected, chunks


def _whole_completions_choice(expected: Choice, index: int) -> Json:
    choice = {
        "text": expected.text,
        "index": index,
        "logprobs": expected.logprobs or None,
        "finish_reason": expected.finish[0],
    }
    return choice | {name: values[0] for name, values in expected.members.items()}


# Bytes.


def _envelope(draw: Random, prefix: str, kind: str) -> Json:
    envelope: Json = {
        "id": f"{prefix}{draw.choice(('1', 'Aé', 'x-y-z'))}",
        "object": kind,
        "created": 1700000000,
        "model": "m",
    }
    return envelope | ({"system_fingerprint": "fp_1"} if draw.random() < 0.4 else {})


def _stream(
    draw: Random, request: Json, envelope: Json, choices: list[Json], usage: Json | None, tops: list[Member]
) -> bytes:
    """Write a stream; the members `tops` are on its first or last chunks."""
    is_continuous = request.get("stream_options", {}).get("continuous_usage_stats") is True
    chunks: list[Json] = [{**envelope, "choices": [choice]} for choice in choices]
    has_null_usage = usage is not None and draw.random() < 0.7
    if has_null_usage:
        chunks = [{**chunk, "usage": None} for chunk in chunks]
    if is_continuous:
        chunks = [{**chunk, "usage": {**(usage or {}), "completion_tokens": 0}} for chunk in chunks]
    if usage is not None:
        chunks.append({**envelope, "choices": [], "usage": usage})
    for member in tops:
        values = member.values[: len(chunks)] if len(member.values) == 40 else member.values
        if len(values) > len(chunks):
            values = values[-len(chunks) :]
        start = draw.choice((0, len(chunks) - len(values)))
        for chunk, json_value in zip(chunks[start:], values, strict=False):
            chunk[member.name] = json_value
    frames = []
    is_ascii, is_spaced = draw.random() < 0.5, draw.random() < 0.3
    for chunk in chunks:
        if draw.random() < 0.05:
            frames.append(b": keep-alive\n\n")
        frames.append(b"data: " + _json(draw, chunk, is_ascii=is_ascii, is_spaced=is_spaced) + b"\n\n")
    return b"".join([*frames, b"data: [DONE]\n\n"])


def _json(draw: Random, json_value: object, *, is_ascii: bool | None = None, is_spaced: bool = False) -> bytes:
    is_ascii = draw.random() < 0.5 if is_ascii is None else is_ascii
    written = json.dumps(json_value, ensure_ascii=is_ascii, separators=(", ", ": ") if is_spaced else (",", ":"))
    # Clients that split text into lines treat these as line breaks, so a legal stream escapes them.
    for letter in "\u0085\u2028\u2029":
        written = written.replace(letter, f"\\u{ord(letter):04x}")
    return written.encode()
