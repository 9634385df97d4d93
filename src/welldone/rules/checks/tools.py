"""Checks of tool calls, assembled as a client does it: by index, or by order if the index is missing (`tool-`)."""

import json
import re
from collections.abc import Collection, Iterator

from welldone.rules.rule_check import CheckList, Violation, accepted_if, form_of
from welldone.rules.view import choices
from welldone.rules.view.choices import (
    ARGUMENTS_MEMBER,
    AssembledToolCall,
    ChoiceDelta,
    ChoiceView,
    ToolCallDelta,
    as_object,
    as_text,
)
from welldone.rules.view.view import ReplyKind, TraceView

_TAGS = (
    "<tool_call>",  # Hermes, Qwen, GLM
    "<|tool_call|>",  # Granite, Phi
    "<|tool_call_begin|>",  # Kimi
    "<\uff5ctool\u2581call\u2581begin\uff5c>",  # DeepSeek
    "[TOOL_CALLS]",  # Mistral
    "<function=",  # Llama 3.1, Qwen3 Coder
    "<|python_tag|>",  # Llama 3.1
)
"""Markup that models write for a tool call."""
_MAX_SCANNED_CHARS = 10_000  # of a text; a call of a small tool is far shorter
_TAG = re.compile("|".join(map(re.escape, _TAGS)))
_ONLY_TAGS = re.compile(rf"(?:{_TAG.pattern}|\s)+")
_CODE = re.compile(r"(```|~~~).*?(?:\1|\Z)|`[^`\n]*`|^(?: {4}|\t|>)[^\n]*", re.DOTALL | re.MULTILINE)
"""Code, and quoted lines, in Markdown."""
_NAMED_CALL = re.compile(
    r"(?:function<\uff5ctool\u2581sep\uff5c>|functions\.)?(?P<name>[\w-]++)(?:(?P<whole>"
    r">\s*<parameter=.*</parameter>\s*</function>(?:\s*</tool_call>)?"  # Qwen3 Coder
    r"|\s*<arg_key>.*</arg_value>\s*</tool_call>"  # GLM
    r"|\.call\([^()]+\)(?:<\|\w+\|>)?"  # Llama 3.1
    r")\s*\Z|(?::\d+)?\s*(?:<[|\uff5c][^<>]*>|\[[A-Z_]+\]|>|```json)?\s*)",
    re.DOTALL,
)
"""The name of a call and its arguments; of arguments that are JSON, only what comes before."""
_END_OF_CALL = re.compile(r"(?:\s|```(?=<)|</tool_call>|</function>|<[|\uff5c][^<>\s]+[|\uff5c]>|\[/TOOL_CALLS\])*+")
_DECODER = json.JSONDecoder()


def find_tool_markup(text: str, names: Collection[str]) -> str | None:
    """Any markup of a call in a text, or a JSON call of one of the tools `names`; None if there is none."""
    text = text[:_MAX_SCANNED_CHARS]
    if tag := _TAG.search(text):
        return text[tag.start() :]
    fenced = (piece.removeprefix("json") for piece in text.split("```")[1::2])
    return next((piece.strip() for piece in (text, *fenced) if names and _is_json_call(piece, names)), None)


def find_whole_call(text: str, names: Collection[str]) -> str | None:
    """Markup of a complete call of one of the tools `names` that a text ends in; None if there is none.

    Markup in code, in a quotation or within a line may be what the text is about.
    """
    # Of several calls, the last one ends the text.
    tags = list(_TAG.finditer(_CODE.sub(lambda code: " " * len(code[0]), text)))
    before = text[: tags[-1].start()].rstrip(" \t") if tags else ""
    if not tags or (before and before[-1] not in "\n>]"):
        return None
    return text[tags[-1].start() :] if _is_whole_call(text[tags[-1].end() :].lstrip(), names) else None


def find_answered_call(text: str, names: Collection[str]) -> str | None:
    """A call in a text that had to be one: as in `find_whole_call`, or all of the text is its JSON or its tags."""
    bare = text.strip()
    if len(fence := bare.split("```")) == 3 and not fence[0] and not fence[2]:
        bare = fence[1].removeprefix("json").strip()
    return bare if _ONLY_TAGS.fullmatch(bare) or _is_json_call(bare, names) else find_whole_call(text, names)


def _is_whole_call(text: str, names: Collection[str]) -> bool:
    """Whether the text after a tag is a call, to the end."""
    named = _NAMED_CALL.match(text)
    if named is not None and (named["whole"] or named["name"] not in names):
        return named["name"] in names
    try:
        value, end = _DECODER.raw_decode(text, named.end() if named else 0)
    except (ValueError, RecursionError):
        return False
    is_call = _is_call(value, names) if named is None else isinstance(value, dict)
    return is_call and _END_OF_CALL.fullmatch(text, end) is not None


def _is_json_call(text: str, names: Collection[str]) -> bool:
    try:
        return _is_call(json.loads(text), names)
    except (ValueError, RecursionError):
        return False


def _is_call(value: object, names: Collection[str]) -> bool:
    tool_call = as_object(value[0] if isinstance(value, list) and value else value)
    # Llama writes `parameters` for arguments. A model that repeats the tool definition has a schema there.
    arguments = tool_call.get("arguments", tool_call.get("parameters"))
    is_schema = "properties" in as_object(arguments)
    return as_text(tool_call.get("name")) in names and arguments is not None and not is_schema


TRUNCATING_FINISH_REASONS = ("length", "content_filter")
"""Reasons after which a call may be incomplete."""
_WHOLE_FINISH_REASONS = ("stop", "tool_calls", "function_call")
"""Reasons of an answer that certainly was not cut off."""

CHECKS = CheckList()


def _parts(view: TraceView) -> Iterator[ToolCallDelta]:
    return (delta for choice in view.choices for delta in choice.tool_call_deltas)


def _first_parts(view: TraceView) -> Iterator[ToolCallDelta]:
    return (delta for delta in _parts(view) if delta.is_first)


def _later_parts(view: TraceView) -> Iterator[ToolCallDelta]:
    return (delta for delta in _parts(view) if not delta.is_first)


@CHECKS.each("tool-index-required", _parts)
def _index_required(delta: ToolCallDelta) -> Iterator[Violation]:
    if delta.entry.get("index") is None:
        form = form_of(delta.entry.get("index", ...))
        yield Violation(delta, delta.entry, f'"index":{delta.call.number}', form)


@CHECKS.each("tool-index-int", _parts)
def _index_int(delta: ToolCallDelta) -> Iterator[Violation]:
    index = delta.entry.get("index")
    if index is not None and not choices.is_int(index):
        yield Violation(delta, {"index": index}, f'"index":{delta.call.number}', form_of(index))


@CHECKS.each("tool-index-distinct", _parts)
def _index_distinct(delta: ToolCallDelta) -> Iterator[Violation]:
    if delta.has_index_clash:
        yield Violation(delta, delta.entry, f'"index":{delta.call.number}')


@CHECKS.each("tool-index-contiguous", lambda view: view.choices)
def _index_contiguous(choice: ChoiceView) -> Iterator[Violation]:
    expected = 0
    for delta in choice.tool_call_deltas:
        index = delta.call.index
        if index is None or not delta.is_first or delta.has_index_clash:
            continue
        # Report the call that comes too early, not the one that it overtakes.
        if index > expected or index < 0:
            yield Violation(delta, {"index": index}, f'"index":{expected}')
        expected = max(expected, index + 1)


@CHECKS.each("tool-id-first", _first_parts)
def _id_first(delta: ToolCallDelta) -> Iterator[Violation]:
    if not delta.id:
        form = form_of(delta.entry.get("id", ...))
        yield Violation(delta, delta.entry, '"id":"call_..." on the first delta of the call', form)


@CHECKS.each("tool-id-once", _later_parts)
def _id_once(delta: ToolCallDelta) -> Iterator[Violation]:
    if delta.id and delta.id == delta.previous_id:
        yield Violation(delta, delta.entry, "no id on later deltas of the call")


@CHECKS.each("tool-id-stable", lambda view: view.choices)
def _id_stable(choice: ChoiceView) -> Iterator[Violation]:
    seen: set[str] = set()
    for delta in choice.tool_call_deltas:
        if delta.is_first and delta.id in seen:
            yield Violation(delta, delta.entry, "an id of its own for each call")
        elif not delta.is_first and delta.id and delta.previous_id not in ("", delta.id):
            yield Violation(delta, delta.entry, f'"id":"{delta.previous_id[:80]}", or none')
        if delta.is_first and delta.id:
            seen.add(delta.id)


@CHECKS.each("tool-type-first", _first_parts)
def _type_first(delta: ToolCallDelta) -> Iterator[Violation]:
    if str(delta.entry.get("type")) not in ARGUMENTS_MEMBER:
        form = form_of(delta.entry.get("type", ...))
        yield Violation(delta, delta.entry, f'"type":"{delta.call_type}" on the first delta of the call', form)


@CHECKS.each("tool-name-whole", _parts)
def _name_whole(delta: ToolCallDelta) -> Iterator[Violation]:
    if delta.is_first and not delta.name and delta.call_type in delta.entry:
        expected = f'"{delta.call_type}":{{"name":"<the whole name>"}} on the first delta of the call'
        yield Violation(delta, delta.entry, expected, "missing")
    elif not delta.is_first and delta.name and delta.call.deltas[0].name not in ("", delta.name):
        yield Violation(delta, delta.entry, "the whole name on the first delta of the call")


@CHECKS.each("tool-name-once", _later_parts)
def _name_once(delta: ToolCallDelta) -> Iterator[Violation]:
    if delta.name and delta.name == delta.call.deltas[0].name:
        yield Violation(delta, delta.entry, "no name on later deltas of the call")


@CHECKS.each("tool-later-fields-absent", _later_parts)
def _later_fields(delta: ToolCallDelta) -> Iterator[Violation]:
    members = {key: delta.entry.get(key, ...) for key in ("id", "type")} | {"name": delta.function.get("name", ...)}
    empty = [key for key, value in members.items() if value in (None, "")]
    if empty:
        # Clients concatenate strings: "" is harmless, null is not.
        form = form_of(None if None in members.values() else "")
        yield Violation(delta, delta.entry, f"no {', '.join(empty)} on later deltas of the call", form)


@CHECKS.each("tool-args-string", _parts)
def _args_string(delta: ToolCallDelta) -> Iterator[Violation]:
    if not isinstance(delta.arguments, str):
        member = ARGUMENTS_MEMBER[delta.call_type]
        yield Violation(delta, {member: delta.arguments}, f'"{member}":"<text>"', form_of(delta.arguments))


def _ended_calls(view: TraceView) -> Iterator[AssembledToolCall]:
    """Yield the function calls of finished choices. The input of custom tools need not be JSON."""
    for choice in view.choices:
        if choice.finish_delta and choice.finish_delta.finish_reason not in TRUNCATING_FINISH_REASONS:
            yield from (tool_call for tool_call in choice.tool_calls if not tool_call.is_custom)


@CHECKS.each("tool-args-json-object", _ended_calls)
def _args_json_object(tool_call: AssembledToolCall) -> Iterator[Violation]:
    # tool-args-string and tool-args-first-empty report the other cases.
    if tool_call.arguments and not _restarts_arguments(tool_call) and not choices.is_json(tool_call.arguments, dict):
        # JSON of another type is readable, and more often the model's doing than the server's.
        observed, form = {"arguments": tool_call.arguments}, accepted_if(tool_call.has_valid_arguments)
        yield Violation(tool_call.deltas[-1], observed, "one JSON object when joined", form)


@CHECKS.each("tool-args-first-empty", lambda view: view.choices)
def _args_first_empty(choice: ChoiceView) -> Iterator[Violation]:
    for tool_call in filter(_restarts_arguments, choice.tool_calls):
        yield Violation(tool_call.deltas[0], {"arguments": "{}"}, '"arguments":""')


def _restarts_arguments(tool_call: AssembledToolCall) -> bool:
    """Whether the arguments start again after an initial {}."""
    texts = [text for delta in tool_call.deltas if (text := choices.as_text(delta.arguments)).strip()]
    return not tool_call.is_custom and len(texts) > 1 and texts[0] == "{}" and texts[1].lstrip().startswith("{")


@CHECKS.each("tool-args-no-arg-call", _ended_calls)
def _args_no_arg_call(tool_call: AssembledToolCall) -> Iterator[Violation]:
    if tool_call.arguments == "":
        yield Violation(tool_call.deltas[-1], tool_call.deltas[-1].entry, '"arguments":"{}"')


@CHECKS.each("tool-function-present", _parts)
def _function_present(delta: ToolCallDelta) -> Iterator[Violation]:
    if not isinstance(delta.entry.get(delta.call_type), dict):
        expected = f'"{delta.call_type}":{{"{ARGUMENTS_MEMBER[delta.call_type]}":"..."}}'
        yield Violation(delta, delta.entry, expected, form_of(delta.entry.get(delta.call_type, ...)))


@CHECKS.rule("tool-one-at-a-time")
def _one_at_a_time(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if len(choice_delta.tool_call_entries) > 1:
            yield Violation(choice_delta, {"tool_calls": choice_delta.tool_call_entries}, "one entry in each delta")
    for choice in view.choices:
        deltas = choice.tool_call_deltas
        last = max((number for number, delta in enumerate(deltas) if not delta.is_late), default=0)
        for number, delta in enumerate(deltas):
            # White space and fields after the last call change no call, and repair can only pass them on.
            if delta.is_late and (number < last or str(delta.arguments).strip()):
                yield Violation(delta, delta.entry, "all deltas of one call before the next call begins")


@CHECKS.rule("tool-no-markup-leak", ReplyKind.STREAM, ReplyKind.WHOLE, needs=("request",))
def _no_markup_leak(view: TraceView) -> Iterator[Violation]:
    # The text alone is no proof: a user may ask for it. It is one beside a call, and in place of a required one.
    request = view.trace.request or {}
    tools = map(choices.as_object, choices.as_list(request.get("tools")))
    names = {choices.as_text(choices.as_object(tool.get("function")).get("name")) for tool in tools} - {""}
    choice = request.get("tool_choice")
    is_required = choice == "required" or choices.as_object(choice).get("type") in ARGUMENTS_MEMBER
    for location, text, has_calls in _answers(view) if names and choice != "none" else ():
        find = find_whole_call if has_calls else find_answered_call if is_required else None
        if find is not None and (markup := find(text, names)) is not None:
            yield Violation(location, {"content": markup}, "tool_calls, and no markup in content")


def _answers(view: TraceView) -> Iterator[tuple[ChoiceDelta | None, str, bool]]:
    """Yield the last delta, the text, and whether there are tool calls, of each choice that was not cut off."""
    for choice in view.choices:
        if choice.finish_delta and choice.finish_delta.finish_reason in _WHOLE_FINISH_REASONS:
            yield choice.deltas[-1], choice.text, bool(choice.tool_calls)
    wholes = choices.as_list(view.reply_object.get("choices")) if view.reply_kind is ReplyKind.WHOLE else []
    for whole in map(choices.as_object, wholes):
        message = choices.as_object(whole.get("message"))
        if whole.get("finish_reason") in _WHOLE_FINISH_REASONS:
            yield None, choices.as_text(message.get("content")), bool(message.get("tool_calls"))


@CHECKS.each("tool-no-content-in-same-delta", lambda view: view.choice_deltas)
def _no_content_in_same_delta(delta: ChoiceDelta) -> Iterator[Violation]:
    if delta.text and delta.tool_call_entries:
        yield Violation(delta, {"delta": delta.delta}, "the content on a chunk before the tool call")


@CHECKS.each("tool-calls-null", lambda view: view.choice_deltas)
def _calls_null(delta: ChoiceDelta) -> Iterator[Violation]:
    if "tool_calls" in delta.delta and not delta.tool_call_entries:
        yield Violation(
            delta, {"tool_calls": delta.delta["tool_calls"]}, "no tool_calls key", form_of(delta.delta["tool_calls"])
        )


@CHECKS.each("tool-finish-follows", lambda view: view.unfinished_choices, needs=("end",))
def _finish_follows(choice: ChoiceView) -> Iterator[Violation]:
    if choice.tool_calls:
        observed = f"no finish_reason after the tool calls of choice {choice.index}"
        yield Violation(choice.deltas[-1], observed, '"delta":{},"finish_reason":"tool_calls"')


@CHECKS.rule("tool-legacy-function-call", needs=("request",))
def _legacy_function_call(view: TraceView) -> Iterator[Violation]:
    if not (view.trace.request or {}).get("functions"):
        for delta in view.choice_deltas:
            if delta.delta.get("function_call") is not None:
                yield Violation(delta, {"function_call": delta.delta["function_call"]}, "tool_calls")
