"""Conversion of an answer that is only the JSON of tool calls, bare or in one code fence, into those calls.

Some models write `{"name": …, "arguments": {…}}`, or a list of such objects, instead of the markup that their server
parses: Qwen2.5-Coder does so in most answers. The text is converted where the operator allows it, and only if the whole
of it is calls of given tools with arguments that fit their schemas. Any other text passes unchanged. It is held back
only while it may be such calls: ordinary text not at all, a code block up to a first character other than `{` and `[`.
"""

import re
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from welldone.core import events as ev
from welldone.core.events import Event, Json
from welldone.core.lenient_json import NOT_JSON, as_list, as_object, parse_strict
from welldone.core.repair_log import RepairLog
from welldone.core.schema_check import fits_schema

HELD_LIMIT = 256 * 1024
"""Characters of the text and of other fields that one choice holds back: a call that writes a file of 6,000 lines."""

_NO_PARAMETERS: Json = {"type": "object", "additionalProperties": False}
_SPACE_LIMIT = 256  # characters of white space before or after the JSON
_NAME_LIMIT = 1024  # characters of a name in JSON
_DEPTH_LIMIT = 64
_CALLS_LIMIT = 128  # in a list: the limit of OpenAI's clients
_SCALAR_LIMIT = 64  # characters of a number; longer ones do not survive in a double


class CallableTools(msgspec.Struct, frozen=True, eq=False):
    """The functions that a model may call, with the schema of their parameters as JSON: a capture may keep it long."""

    schemas: dict[str, bytes]


def callable_tools(body: Json, *, is_upstream: bool = False) -> CallableTools | None:
    """Return the functions of a chat request; None if the model does not choose, or must answer in JSON.

    An upstream may ignore that a call is required; a local engine is constrained to it.
    """
    choices = (None, "auto", "required") if is_upstream else (None, "auto")
    if body.get("tool_choice") not in choices or body.get("response_format") is not None:
        return None
    functions = [as_object(as_object(tool).get("function")) for tool in as_list(body.get("tools"))]
    schemas = {
        entry["name"]: msgspec.json.encode(_NO_PARAMETERS if entry.get("parameters") is None else entry["parameters"])
        for entry in functions
        if isinstance(entry.get("name"), str)
    }
    return CallableTools(schemas) if schemas else None


class _Expected(Enum):
    """What may follow in a JSON text."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_PIECE = re.compile(r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
_PARTIAL_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR_PIECE = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


_MEMBERS = {
    "name": "name",
    "arguments": "arguments",  # Qwen2.5-Coder: jundot/omlx#2565; Ministral, in a list: ml-explore/mlx-lm#1374
    "parameters": "arguments",  # Llama 3.2: ollama/ollama#13519; Llama 4: jundot/omlx#1153
    "type": "type",  # always `function`; Llama 4: vllm-project/vllm#46863
}
"""Members of a call as models write them, with what they are."""


class CallObjectScanner:
    """Reads `{"name": …, "arguments": {…}}` in pieces, each character once, and stops at the first that is wrong.

    Arguments are checked for JSON only.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.is_complete: bool = False
        self.is_broken: bool = False
        """Whether the text is no call of one of the tools `names`, however it goes on."""
        self._names = names
        self._expected = _Expected.VALUE
        self._closers: list[str] = []  # of the open objects and lists
        self._is_in_string = False
        self._is_key = False
        self._string = ""  # key or value on the top level
        self._rest = ""  # incomplete number, word or escape
        self._members: list[object] = []  # of the call, so far

    def feed(self, text: str) -> int:
        """Read a piece; return the number of its characters after the end of the object."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text) and not (self.is_complete or self.is_broken):
            at = self._read_string(text, at) if self._is_in_string else self._read_token(text, at)
        return len(text) - at

    def _read_string(self, text: str, at: int) -> int:
        match = _STRING_PIECE.match(text, at)
        assert match is not None
        if len(self._closers) == 1:
            self._string += match[0]
            self.is_broken = len(self._string) > _NAME_LIMIT
        at = match.end()
        if at == len(text) or self.is_broken:
            return at
        if text[at] == '"':
            self._is_in_string = False
            self._end_string()
            return at + 1
        if _PARTIAL_ESCAPE.fullmatch(text, at):
            self._rest = text[at:]
            return len(text)
        self.is_broken = True
        return at

    def _end_string(self) -> None:
        is_top = len(self._closers) == 1
        string, self._string = parse_strict(f'"{self._string}"'.encode()) if is_top else "", ""
        if not self._is_key:
            allowed = ("function",) if self._members[-1] == "type" else self._names
            self.is_broken = is_top and string not in allowed
            self._expected = _Expected.COMMA_OR_END
            return
        self._expected = _Expected.COLON
        if is_top:
            member = _MEMBERS.get(string) if isinstance(string, str) else None
            self.is_broken = member is None or member in self._members
            self._members.append(member)

    def _read_token(self, text: str, at: int) -> int:
        match = _SPACE.match(text, at)
        assert match is not None
        at = match.end()
        if at == len(text):
            return at
        sign, expected, closers = text[at], self._expected, self._closers
        if expected is _Expected.COLON and sign == ":":
            self._expected = _Expected.VALUE
        elif expected is _Expected.COMMA_OR_END and sign == ",":
            self._expected = _Expected.KEY if closers[-1] == "}" else _Expected.VALUE
        elif sign in "}]" and closers and sign == closers[-1] and expected.name.endswith("_OR_END"):
            closers.pop()
            self._expected = _Expected.COMMA_OR_END
            if not closers:
                self.is_complete = {"name", "arguments"}.issubset(self._members)
                self.is_broken = not self.is_complete
        elif expected in (_Expected.KEY, _Expected.KEY_OR_END) and sign == '"':
            self._is_in_string = self._is_key = True
        elif expected in (_Expected.VALUE, _Expected.VALUE_OR_END):
            return self._start_value(text, at)
        else:
            self.is_broken = True
        return at + 1

    def _start_value(self, text: str, at: int) -> int:
        sign, depth = text[at], len(self._closers)
        is_wrong_member = depth == 1 and sign != ("{" if self._members[-1] == "arguments" else '"')
        if is_wrong_member or (depth == 0 and sign != "{") or depth > _DEPTH_LIMIT:
            self.is_broken = True
        elif sign in "{[":
            self._closers.append("}" if sign == "{" else "]")
            self._expected = _Expected.KEY_OR_END if sign == "{" else _Expected.VALUE_OR_END
        elif sign == '"':
            self._is_in_string, self._is_key = True, False
        else:
            return self._read_scalar(text, at)
        return at + 1

    def _read_scalar(self, text: str, at: int) -> int:
        match = _SCALAR_PIECE.match(text, at)
        assert match is not None
        end = match.end()
        if end == len(text) and end - at <= _SCALAR_LIMIT:
            self._rest = match[0]  # it may go on
        elif end - at > _SCALAR_LIMIT or _SCALAR.fullmatch(match[0]) is None:
            self.is_broken = True
        else:
            self._expected = _Expected.COMMA_OR_END
        return end


_OPENING = re.compile(r"\s*(```(?:json)?\s*)?(\[\s*)?(?=\{)")
_PARTIAL_OPENING = re.compile(r"\s*(?:`{0,2}|```(?:j|js|jso)?|(?:```(?:json)?\s*)?(?:\[\s*)?)")
_SEPARATOR = re.compile(r"\s*,\s*(?=\{)")
_FORMS = [(is_fenced, is_list) for is_fenced in (False, True) for is_list in (False, True)]
_ENDING = {form: re.compile(r"\s*" + r"\]\s*" * form[1] + r"```\s*" * form[0]) for form in _FORMS}
_PARTIAL_FENCE = r"(?:`{0,2}|```\s*)"
_PARTIAL_ENDING = {
    (fence, is_list): re.compile(
        r"\s*" + rf"(?:,\s*|\]\s*{_PARTIAL_FENCE * fence})?" * is_list + _PARTIAL_FENCE * (fence > is_list)
    )
    for fence, is_list in _FORMS
}


class _CallMembers(msgspec.Struct):
    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class TextCallMatcher:
    """Reads a text in pieces, as long as it may be calls of the tools."""

    def __init__(self, tools: CallableTools) -> None:
        self.may_be_call: bool = True
        self._tools = tools
        self._scanner = CallObjectScanner(frozenset(tools.schemas))
        self._opening: str | None = ""  # text before the object; None from there on
        self._form = False, False  # whether it has a fence, and is a list
        self._object: list[str] = []
        self._calls: list[tuple[str, str]] = []
        self._ending = ""  # text after the object

    @property
    def is_blank(self) -> bool:
        """Whether the text so far is white space."""
        return self._opening is not None and not self._opening.strip()

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments, if the text is calls as it is."""
        return self._calls if self.may_be_call and _ENDING[self._form].fullmatch(self._ending) else []

    def feed(self, text: str) -> None:
        """Read a piece."""
        if self._opening is not None:
            text = self._opening + text
            match = _OPENING.match(text)
            if match is None:
                self._opening = text
                self.may_be_call = len(text) <= _SPACE_LIMIT and _PARTIAL_OPENING.fullmatch(text) is not None
                return
            self._form = match[1] is not None, match[2] is not None
            self.may_be_call = match.end() <= _SPACE_LIMIT
            self._opening, text = None, text[match.end() :]
        if not self._scanner.is_complete:
            rest = self._scanner.feed(text)
            self._object.append(text[: len(text) - rest])
            is_wrong = self._scanner.is_broken
            if self._scanner.is_complete:
                tool_call = self._read_call("".join(self._object))
                is_wrong = tool_call is None
                self._calls += [] if tool_call is None else [tool_call]
            self.may_be_call = self.may_be_call and not is_wrong
            text = text[len(text) - rest :]
        self._ending += text
        separator = _SEPARATOR.match(self._ending) if self._form[1] and self.may_be_call else None
        if separator is not None and len(self._calls) < _CALLS_LIMIT:
            text, self._ending, self._object = self._ending[separator.end() :], "", []
            self._scanner = CallObjectScanner(frozenset(self._tools.schemas))
            self.feed(text)
            return
        is_partial = _PARTIAL_ENDING[self._form].fullmatch(self._ending) is not None
        self.may_be_call = self.may_be_call and is_partial and len(self._ending) <= _SPACE_LIMIT

    def _read_call(self, text: str) -> tuple[str, str] | None:
        """Return name and arguments of a JSON object that the scanner has read; None if they do not fit the schema."""
        if parse_strict(text.encode()) is NOT_JSON:  # numbers and characters that the grammar allows
            return None
        members = msgspec.json.decode(text, type=_CallMembers)
        raw = members.parameters if isinstance(members.arguments, msgspec.UnsetType) else members.arguments
        arguments = bytes(raw)  # type: ignore[arg-type]  # one of them is there
        schema = msgspec.json.decode(self._tools.schemas[members.name])
        return (members.name, arguments.decode()) if fits_schema(msgspec.json.decode(arguments), schema) else None


class _HeldChoice:
    def __init__(self, tools: CallableTools) -> None:
        self.matcher = TextCallMatcher(tools)
        self.events: list[Event] = []
        self.size = 0

    def hold(self, event: ev.Text | ev.Logprobs | ev.UnknownFields) -> bool:
        """Hold an event back; return whether the choice may still be a call."""
        self.events.append(event)
        if isinstance(event, ev.Text):
            self.size += len(event.text)
            self.matcher.feed(event.text)
        else:
            self.size += len(msgspec.json.encode(event))
        return self.matcher.may_be_call and self.size <= HELD_LIMIT


class JsonCallConverter:
    """Converts the choices of one answer whose whole text is a call. Events must be in legal order.

    `new_call_id` makes ids of calls.
    """

    def __init__(self, tools: CallableTools, new_call_id: Callable[[], str], repair_log: RepairLog) -> None:
        self.count: int = 0
        """Number of converted choices."""
        self.settled: set[int] = set()
        """Choices whose further events pass unchanged."""
        self._tools = tools
        self._new_call_id = new_call_id
        self._repair_log = repair_log
        self._held: dict[int, _HeldChoice] = {}

    def is_settled(self, choice_count: int) -> bool:
        """Whether the events of all choices pass unchanged from here on."""
        return not self._held and len(self.settled) >= choice_count

    def feed(self, events: list[Event]) -> list[Event]:
        """Return the events that can be sent after `events`."""
        out: list[Event] = []
        for event in events:
            match event:
                case ev.Failure():
                    for index in sorted(self._held):
                        self._release(index, out)
                    out.append(event)
                case ev.KeepAlive() | ev.Usage():
                    out.append(event)
                case _ if event.index in self.settled:
                    out.append(event)
                case ev.Text() | ev.Logprobs() | ev.UnknownFields():
                    choice = self._held.setdefault(event.index, _HeldChoice(self._tools))
                    if not choice.hold(event):
                        self._release(event.index, out)
                case ev.Finish():
                    self._finish(event, out)
                case ev.ChoiceStart() | ev.Reasoning() if self._is_blank(event.index):
                    out += self._take(event.index)
                    out.append(event)
                case _:
                    self._release(event.index, out)
                    out.append(event)
        return out

    def _is_blank(self, index: int) -> bool:
        choice = self._held.get(index)
        return choice is None or choice.matcher.is_blank

    def _take(self, index: int) -> list[Event]:
        choice = self._held.get(index)
        if choice is None:
            return []
        events, choice.events = choice.events, []
        return events

    def _release(self, index: int, out: list[Event]) -> None:
        """Send what was held back of a choice, which is no call."""
        self.settled.add(index)
        out += self._take(index)
        self._held.pop(index, None)

    def _finish(self, finish: ev.Finish, out: list[Event]) -> None:
        index = finish.index
        choice = self._held.get(index)
        calls = [] if choice is None or finish.reason not in ("stop", "tool_calls") else choice.matcher.calls
        if not calls:
            self._release(index, out)
            out.append(finish)
            return
        self.count += 1
        self._repair_log.record("tool-no-markup-leak", calls)
        events = self._take(index)
        last = max(position for position, event in enumerate(events) if isinstance(event, ev.Text))
        self._release(index, out)
        # Without log probabilities, which are those of the text.
        out += [event for event in events[:last] if isinstance(event, ev.UnknownFields)]
        for number, (name, arguments) in enumerate(calls):
            out += [ev.ToolCall(index, number, self._new_call_id(), name), ev.ToolArguments(index, number, arguments)]
        out += [event for event in events[last:] if isinstance(event, ev.UnknownFields)]
        out.append(ev.Finish(index, "tool_calls"))
