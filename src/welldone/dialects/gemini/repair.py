"""Pass-through repair of the Gemini API: features that only Google's API has are kept.

An element of a stream is a whole reply with the next parts of its candidates. There is no terminal event: a stream is
complete if each candidate has a finish reason, or the prompt was blocked.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from welldone.core import sse
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure, Json, Usage
from welldone.core.fields import bad_stream_failure
from welldone.core.finish_reasons import finish_word
from welldone.core.lenient_json import as_list, as_object
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import CHAT_CHOICES_LIMIT
from welldone.core.state import PartState
from welldone.dialects.gemini import objects
from welldone.dialects.gemini.writer import GeminiFormat
from welldone.dialects.same_dialect import PassthroughRepairer

_REPLY_MEMBERS = frozenset({"candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"})
"""Members of a reply; a JSON object without any of them is something else."""
_LOGPROBS_LISTS = ("chosenCandidates", "topCandidates")
_TEXT_CANDIDATE_MEMBERS = frozenset({"content", "index", "safetyRatings"})
_TEXT_MEMBERS = frozenset({"text", "thought"})
_PART_TYPES: dict[str, type] = {"text": str, "functionCall": dict, "thoughtSignature": str}


IndexedCandidates: TypeAlias = list[tuple[int, Json]]


class ElementOutput:
    """Writes the elements of a stream; a reader replaces it."""

    def __init__(self, dialect: GeminiFormat) -> None:
        self._dialect = dialect

    def add(self, element: Json, candidates: IndexedCandidates) -> bytes:
        """Return the bytes of an element, whose candidates are given with their indices."""
        return self._dialect.encode_element(element)

    def add_text(self, element: Json, text: str) -> bytes:
        """Return the bytes of an element that has only the next text of the first candidate."""
        return self._dialect.encode_element(element)

    def end(self) -> bytes:
        """Return the bytes after the last element."""
        return self._dialect.end_bytes()


class ReplyAccumulator(ElementOutput):
    """Merges the elements of a stream into one reply; one element is not changed."""

    def __init__(self) -> None:
        super().__init__(GeminiFormat())
        self._members: Json = {}
        self._candidates: dict[int, Json] = {}
        self._parts: dict[int, list[tuple[Json, list[str]]]] = {}  # each with its text, which may be in pieces

    def add(self, element: Json, candidates: IndexedCandidates) -> bytes:
        """Add an element. Parts and log probabilities are appended; of all other members the last value counts."""
        self._members |= {name: value for name, value in element.items() if name != "candidates"}
        for index, candidate in candidates:
            known = self._candidates.setdefault(index, {})
            before = as_object(known.get("content")), as_object(known.get("logprobsResult"))
            known |= {name: value for name, value in candidate.items() if value is not None or name not in known}
            if isinstance(content := candidate.get("content"), dict):
                known["content"] = before[0] | content
                self._add_parts(self._parts.setdefault(index, []), as_list(content.get("parts")))
            if isinstance(result := candidate.get("logprobsResult"), dict) and before[1]:
                lists = {name: as_list(before[1].get(name)) + as_list(result.get(name)) for name in _LOGPROBS_LISTS}
                known["logprobsResult"] = before[1] | result | lists
        return b""

    def add_text(self, element: Json, text: str) -> bytes:
        """Add an element."""
        return self.add(element, [(0, element["candidates"][0])])

    def end(self) -> bytes:
        """Return no bytes: `reply` is the result."""
        return b""

    @property
    def reply(self) -> Json:
        """The reply."""
        for index, parts in self._parts.items():
            if parts:
                joined = [first | {"text": "".join(texts)} if len(texts) > 1 else first for first, texts in parts]
                self._candidates[index]["content"]["parts"] = joined
        candidates = [candidate for _, candidate in sorted(self._candidates.items())]
        return ({"candidates": candidates} if candidates else {}) | self._members

    def _add_parts(self, known: list[tuple[Json, list[str]]], parts: list[object]) -> None:
        """Add parts. The first text continues the last one, if both are plain."""
        for number, piece in enumerate(map(as_object, parts)):
            is_thought = _text_kind(piece)
            if number == 0 and known and is_thought is not None and is_thought is _text_kind(known[-1][0]):
                known[-1][1].append(piece["text"])
            else:
                known.append((piece, [piece["text"]] if is_thought is not None else []))


def _text_kind(piece: Json) -> bool | None:
    """Return whether a text is a thought; None for another part, or a text with a signature."""
    is_plain = isinstance(piece.get("text"), str) and piece.keys() <= _TEXT_MEMBERS
    return piece.get("thought") is True if is_plain else None


def _indexed_candidates(candidates: list[Any]) -> IndexedCandidates:
    """Return the candidates with their index, which protobuf leaves out if it is 0."""
    entries = [entry for entry in candidates if isinstance(entry, dict)]
    return [
        (index if type(index := candidate.get("index")) is int and index >= 0 else position, candidate)
        for position, candidate in enumerate(entries)
    ]


class GeminiRepairer(PassthroughRepairer):
    """Repairs one stream or non-streamed reply. `output` replaces the one that writes the elements."""

    _UNKNOWN_EVENT_RULE: ClassVar[str] = "gem-element"

    def __init__(
        self,
        *,
        fallback: Envelope,
        model: str | None = None,
        is_stream: bool = True,
        dialect: GeminiFormat | None = None,
        output: ElementOutput | None = None,
        repair_log: RepairLog | None = None,
    ) -> None:
        super().__init__(Endpoint.GEMINI, fallback, model, is_stream=is_stream, repair_log=repair_log)
        self._dialect = GeminiFormat() if dialect is None else copy.copy(dialect)  # it has state
        self.headers: Mapping[str, str] = dict(self._dialect.HEADERS)
        self._accumulator = ReplyAccumulator()
        self._output = output or (ElementOutput(self._dialect) if is_stream else self._accumulator)
        self._open: set[int] = set()  # candidates that have not finished
        self._finished: set[int] = set()
        self._is_blocked = False  # the prompt
        self._metadata: object = None  # the last usage
        self._has_late_content = False  # content after a finish reason
        self._has_output = False

    @property
    def is_complete(self) -> bool:
        """Whether only the end of the body is missing: old models send a finish reason with each element."""
        return self._is_finished and not self._has_late_content and not self.is_done

    @property
    def _is_finished(self) -> bool:
        return (self._is_blocked or bool(self._finished)) and not self._open

    @property
    def has_started(self) -> bool:
        """Whether an element was received."""
        return self._has_output

    def part_state(self, part: int) -> PartState:
        """Return how far the answer has come. Each element may have a usage: it is no sign of the end."""
        state = super().part_state(part)
        return PartState.FINISHED if state is PartState.FINISHED_WITH_USAGE else state

    def _reply_object(self, failure: Failure | None) -> Json:
        return self._accumulator.reply if failure is None else objects.failure_object(failure)

    def _fail(self, failure: Failure, *, is_ours: bool = False) -> bytes:
        self._read_usage()
        return super()._fail(failure, is_ours=is_ours)

    def _read_usage(self) -> None:
        """Read the last usage. Each element may have one: those of text alone are read when something else follows."""
        usage = objects.usage_from_metadata(as_object(self._metadata))
        if usage is not None and usage != self.usage:
            self.usage: Usage | None = usage

    def _repair_event(self, value: Json, name: str) -> bytes:
        if 0 in self._open and (text := _text_alone(value)) is not None:
            self._metadata = value.get("usageMetadata", self._metadata)
            return self._output.add_text(self._with_model(value), text)
        failure = None if value.keys() & _REPLY_MEMBERS and "error" not in value else objects.read_failure(value)
        if failure is not None:
            return self._fail(failure)
        if not value.keys() & _REPLY_MEMBERS:
            self._leave_out(value)
            return b""
        received = value.get("candidates")
        if received is not None:
            entries = self.repair_log.read_objects(received, "gem-candidates")
            value = value | {"candidates": [self._right_candidate(candidate) for candidate in entries]}
        right = value.get("candidates") or []
        candidates = _indexed_candidates(right)
        for index, candidate in candidates:
            if index >= CHAT_CHOICES_LIMIT:
                return self._fail(bad_stream_failure(f"a candidate with the index {index}"))
            self._note_candidate(index, candidate)
        self._is_blocked |= bool(as_object(value.get("promptFeedback")).get("blockReason"))
        self._metadata = value.get("usageMetadata", self._metadata)
        self._read_usage()
        self._has_output = True
        return self._output.add(self._with_model(value), candidates)

    def _right_candidate(self, candidate: Json) -> Json:
        """Return a candidate without values of a wrong type, on which clients fail."""
        received = candidate.get("content")
        if received is None:
            return candidate
        content = self.repair_log.read_object(received, "gem-content")
        if (parts := content.get("parts")) is not None:
            valid = self.repair_log.read_objects(parts or [], "gem-parts")
            content = content | {"parts": [right for piece in valid if (right := self._right_part(piece)) or not piece]}
        return candidate | {"content": content if isinstance(received, dict) else content or None}

    def _right_part(self, piece: Json) -> Json:
        wrong = {n: v for n, v in piece.items() if v is not None and not isinstance(v, _PART_TYPES.get(n, object))}
        if wrong:  # a signature is no content
            self.repair_log.drop("gem-parts", [wrong[name] for name in wrong if name != "thoughtSignature"])
        return {name: value for name, value in piece.items() if name not in wrong}

    def _with_model(self, value: Json) -> Json:
        is_renamed = self._model is not None and "modelVersion" in value
        return value | {"modelVersion": self._model} if is_renamed else value

    def _note_candidate(self, index: int, candidate: Json) -> None:
        if index in self._finished:
            self._has_late_content |= bool(as_object(candidate.get("content")).get("parts"))
        elif (reason := finish_word(candidate.get("finishReason"))) is None:
            self._open.add(index)
        else:
            self._add_finish_reason(reason)
            self._finished.add(index)
            self._open.discard(index)

    def _keep_alive_bytes(self) -> bytes:
        return b"" if self.is_done else self._dialect.INITIAL_KEEP_ALIVE

    def _read_done(self, text: bytes, frame: sse.Frame, out: list[bytes]) -> None:
        self.repair_log.record("gem-no-done")

    def _reply_value(self, value: object) -> object:
        """Merge the elements of a stream that is a JSON array; an error in it is the reply."""
        if not isinstance(value, list):
            return value
        merged = ReplyAccumulator()
        for element in self.repair_log.read_objects(value, self._UNKNOWN_EVENT_RULE):
            if "error" in element:
                return element
            entries = self.repair_log.read_objects(element.get("candidates") or [], "gem-candidates")
            merged.add(element, _indexed_candidates([self._right_candidate(candidate) for candidate in entries]))
        return merged.reply

    def _repair_reply(self, value: Json) -> bytes:
        out = self._repair_event(value, "") + self._fail_if_strict()
        if not self.has_started:
            return self._fail(bad_stream_failure("a reply without candidates"))
        return out + self._finish_stream()

    def _finish_stream(self) -> bytes:
        if self.is_done:
            return b""
        if not self._is_finished:
            return self._fail_incomplete("the server's stream ended before the answer was complete")
        self._is_ended = True
        self._read_usage()
        return self._output.end()

    def _error_bytes(self, failure: Failure) -> bytes:
        return self._dialect.final_error_bytes(failure)


def _text_alone(element: Json) -> str | None:
    """Return the text of an element that has nothing else to read for the first candidate: the common case."""
    candidates = element.get("candidates")
    if type(candidates) is not list or len(candidates) != 1 or not element.keys() <= _REPLY_MEMBERS:
        return None
    candidate = candidates[0]
    if type(candidate) is not dict or not candidate.keys() <= _TEXT_CANDIDATE_MEMBERS or candidate.get("index", 0) != 0:
        return None
    content = candidate.get("content")
    parts = content.get("parts") if type(content) is dict else None
    piece = parts[0] if type(parts) is list and len(parts) == 1 else None
    text = piece.get("text") if type(piece) is dict and len(piece) == 1 else None
    return text if type(text) is str and text and "promptFeedback" not in element else None
