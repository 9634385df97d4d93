"""Reader of the Gemini API: makes events from the parts of the candidates."""

from collections import Counter

import msgspec

from welldone.core import events as ev
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Json
from welldone.core.finish_reasons import finish_reason_for, finish_word, interrupted_failure
from welldone.core.lenient_json import as_list, as_object
from welldone.dialects.event_sink import EventSink
from welldone.dialects.gemini import objects
from welldone.dialects.gemini.repair import ElementOutput, IndexedCandidates
from welldone.dialects.gemini.writer import GeminiFormat


class GeminiEvents(ElementOutput, EventSink):
    """Makes events instead of bytes; all methods return no bytes.

    Parts that only Google's servers fill, such as images, code and its results, and citations have no event.
    """

    failure: ev.Failure | None

    def __init__(self, fallback: Envelope, endpoint: Endpoint) -> None:
        super().__init__(GeminiFormat())
        EventSink.__init__(self, fallback, endpoint)
        self._call_counts: Counter[int] = Counter()

    def add(self, element: Json, candidates: IndexedCandidates) -> bytes:
        """Read an element."""
        model = element.get("modelVersion")
        if self.envelope is None and isinstance(model, str) and model:
            self._fallback = msgspec.structs.replace(self._fallback, model=model)
        for index, candidate in candidates:
            self._read_candidate(index, candidate)
        if as_object(element.get("promptFeedback")).get("blockReason") and not self._started:
            self._ensure_choice(0)
            self.events.append(ev.Finish(0, "content_filter"))
        return b""

    def add_text(self, element: Json, text: str) -> bytes:
        """Read an element that has only a text."""
        self.events.append(ev.Text(0, text))
        return b""

    def end(self) -> bytes:
        """Return no bytes."""
        return b""

    def _read_candidate(self, index: int, candidate: Json) -> None:
        if "logprobsResult" in candidate:
            logprobs = objects.logprobs_from_result(as_object(candidate["logprobsResult"]))
            if logprobs is not None:
                self._ensure_choice(index)
                self.events.append(ev.Logprobs(index, logprobs))
        for piece in map(as_object, as_list(as_object(candidate.get("content")).get("parts"))):
            self._ensure_choice(index)
            self._read_part(index, piece)
        word = finish_word(candidate.get("finishReason"))
        if word is None:
            return
        self._ensure_choice(index)
        reason = finish_reason_for(word, self._endpoint)
        if reason is None:
            message = {"message": candidate.get("finishMessage")}
            self.failure = self.failure or interrupted_failure(word, message, field="finishReason")
        else:
            is_call = reason == "stop" and self._call_counts[index] > 0 and self._endpoint.is_chat
            self.events.append(ev.Finish(index, "tool_calls" if is_call else reason))

    def _read_part(self, index: int, piece: Json) -> None:
        signature = piece.get("thoughtSignature")
        if isinstance(function_call := piece.get("functionCall"), dict):
            self._read_call(index, function_call, objects.signature_fields(signature))
            return
        if isinstance(text := piece.get("text"), str) and text:
            self.events.append(ev.Reasoning(index, text) if piece.get("thought") is True else ev.Text(index, text))
        if isinstance(signature, str) and signature:
            self._add_detail(index, type="reasoning.encrypted", data=signature, format=objects.REASONING_FORMAT)

    def _read_call(self, index: int, function_call: Json, extra_fields: Json) -> None:
        """Read a call. One without an id gets one from the repair of events."""
        number = self._call_counts[index]
        self._call_counts[index] += 1
        call_id, name = (value if isinstance(value := function_call.get(key), str) else "" for key in ("id", "name"))
        self.events.append(ev.ToolCall(index, number, call_id, name, extra_fields))
        args = function_call.get("args")
        self.events.append(ev.ToolArguments(index, number, msgspec.json.encode({} if args is None else args).decode()))
