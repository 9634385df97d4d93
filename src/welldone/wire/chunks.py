"""One chunk of a stream, as events: each field is read as it should be, or as it can be and noted."""

from welldone.wire import faults, logprobs
from welldone.wire.asked import CHAT_CHOICES_LIMIT, COMPLETIONS_CHOICES_LIMIT, Asked
from welldone.wire.counts import is_zero, read_timings, read_usage, usage_object
from welldone.wire.deltas import DeltaReader, whole_number
from welldone.wire.events import Event, Extra, Failure, Finish, Json, KeepAlive, Logprobs, Place, Text, Usage
from welldone.wire.extras import CHOICE_NAMES, CHUNK_NAMES, PROTOCOL_NAMES
from welldone.wire.failures import garbage
from welldone.wire.head import OBJECT, WHOLE_OBJECT, Endpoint, Head, note_envelope, read_head
from welldone.wire.notes import Notes
from welldone.wire.reasons import REASONS, interrupted, reason_for, word_of
from welldone.wire.unicode import scrub, scrub_object

_ABSENT = object()
_ENVELOPE = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
_CHAT_NAMES = CHOICE_NAMES - {"text"}
_PLAIN_NAMES = _CHAT_NAMES - {"message"}
_TIERS = frozenset({"auto", "default", "flex", "scale", "priority"})


class ChunkReader:
    """Events out of chunks. It keeps what one chunk says about the next: the envelope and halves of characters."""

    def __init__(self, endpoint: Endpoint, *, fallback: Head, asked: Asked, notes: Notes) -> None:
        self.head: Head | None = None
        self._endpoint = endpoint
        self._is_chat = endpoint is Endpoint.CHAT
        self._object = OBJECT[endpoint]
        self._fallback = fallback
        self._asked = asked
        self._notes = notes
        self._deltas = DeltaReader(asked, notes)
        self._limit = CHAT_CHOICES_LIMIT if endpoint is Endpoint.CHAT else COMPLETIONS_CHOICES_LIMIT
        self._offsets: dict[int, int] = {}  # how much text each choice of a completion has given
        self._finished: set[int] = set()
        self._by_delta: set[int] = set()  # choices whose text comes in deltas, as it should
        self._begun: set[int] = set()  # choices whose first text with log probabilities has come
        self._is_zero = False  # the last usage was a placeholder
        self._is_counted = False  # a usage that is no placeholder was heard
        self.has_usage_chunk = False
        """Whether usage came as it should: on a chunk without choices."""

    def read(self, chunk: Json, events: list[Event]) -> Failure | None:
        """Add the events of `chunk`; a failure where it tells that the answer is broken."""
        if not self._is_same_envelope(chunk):
            self._envelope(chunk)
        before = len(events)
        if not CHUNK_NAMES.issuperset(chunk) or chunk.get("service_tier") is not None or self._asked.continuous_usage:
            self._extras(chunk, events)
        extras = len(events) - before
        choices = self._choices(chunk)
        if not choices and self.head is not None and _is_placeholder(chunk):
            is_unasked = self._asked.usage is False and not self._asked.is_usage_ours
            self._notes.note(faults.use.ONLY_IF_ASKED if is_unasked else faults.env.PLACEHOLDER_CHUNK, chunk)
        for place, choice in enumerate(choices):
            failure = self._choice(choice, place, events)
            if failure is not None:
                return failure
        if chunk.get("usage") is not None:
            is_dummy = bool(choices and self._finished) and len(events) == before + extras
            self._usage(chunk, choices, events, is_dummy=is_dummy)
        if choices and len(events) == before + extras:
            events.append(_now(self._lowest_index(choices)) if extras else KeepAlive(is_chunk=True))
        return None

    def _is_same_envelope(self, chunk: Json) -> bool:
        head = self.head
        return (
            head is not None
            and chunk.get("id") == head.id
            and chunk.get("created") == head.created
            and chunk.get("model") == head.model
            and chunk.get("object") == self._object
            and chunk.get("system_fingerprint") == head.fingerprint
        )

    def _lowest_index(self, choices: list[object]) -> int:
        indexes = [choice.get("index") for choice in choices if isinstance(choice, dict)]
        return min((index for index in indexes if type(index) is int and index >= 0), default=0)

    def _choices(self, chunk: Json) -> list[object]:
        choices = chunk.get("choices")
        if type(choices) is not list:
            self._notes.note(faults.env.CHOICES_ARRAY, choices)
            return []
        if len(choices) > 1 and self._endpoint is Endpoint.CHAT:
            self._notes.note(faults.n.ONE_CHOICE_PER_CHUNK)
        if choices and self.has_usage_chunk:
            self._notes.note(faults.use.LAST, chunk)
        return choices

    @property
    def is_plain(self) -> bool:
        """Whether a delta with nothing but text needs no look."""
        return self._deltas.is_plain

    def be_careful(self) -> None:
        """From here on strings may hold halves of characters."""
        self._deltas.be_careful()

    def close(self) -> list[Event]:
        """What was held back."""
        return self._deltas.close()

    def _envelope(self, chunk: Json) -> None:
        choices = chunk.get("choices")
        if self.head is None:
            if not choices and not (chunk.get("id") and chunk.get("object")):
                self._notes.note(faults.env.PLACEHOLDER_CHUNK, chunk)
                return
            self.head = read_head(scrub_object(chunk), self._endpoint, self._fallback)
        is_whole_reply = chunk.get("object") == WHOLE_OBJECT[self._endpoint]
        note_envelope(chunk, self.head, self._endpoint, self._notes)
        is_usage_chunk = not choices and isinstance(chunk.get("usage"), dict) and not is_whole_reply
        if is_usage_chunk and not all(chunk.get(key) for key in ("id", "object", "created", "model")):
            self._notes.note(faults.env.METADATA_ON_USAGE_CHUNK, chunk)

    def _extras(self, chunk: Json, events: list[Event]) -> None:
        fields = scrub_object({key: value for key, value in chunk.items() if key not in CHUNK_NAMES})
        for name in PROTOCOL_NAMES & fields.keys():
            self._notes.note(faults.env.EXTRA_FIELDS, {name: fields[name]})
        tier = chunk.get("service_tier")
        if tier is not None:
            fields["service_tier"] = scrub(tier)
            if not isinstance(tier, str) or tier not in _TIERS:
                self._notes.note(faults.env.SERVICE_TIER, tier)
        if "obfuscation" in fields and not self._is_obfuscation_fine(fields["obfuscation"]):
            self._notes.note(faults.env.OBFUSCATION, fields.pop("obfuscation"))
        if self._asked.continuous_usage and chunk.get("choices"):
            usage = self._continuous(chunk, fields)
            fields |= {} if usage is None else {"usage": usage_object(usage)}
        if fields:
            events.append(Extra(0, Place.CHUNK, fields))

    def _continuous(self, chunk: Json, fields: Json) -> Usage | None:
        """The counts up to this chunk. llama.cpp gives them as timings, which stop strings need as well."""
        timings = fields.get("timings")
        if isinstance(chunk.get("usage"), dict):
            return read_usage(scrub_object(chunk["usage"]), self._notes)
        if not isinstance(timings, dict):
            return None
        if not self._asked.stops:
            del fields["timings"]
        return read_timings(timings)

    def _is_obfuscation_fine(self, value: object) -> bool:
        return isinstance(value, str) and self._asked.obfuscation is not False

    def _choice(self, choice: object, place: int, events: list[Event]) -> Failure | None:
        if type(choice) is not dict:
            self._notes.note(faults.delta.OBJECT_PRESENT, choice)
            return None
        index = choice.get("index")
        if type(index) is not int or index < 0:
            index = self._odd_index(index, place)
        if index in self._finished:
            self._notes.note(faults.fin.LAST_OF_CHOICE, choice)
        if index >= self._limit:
            return garbage(f"a choice with the index {index}")
        if self._endpoint is Endpoint.COMPLETIONS:
            return self._completions_choice(choice, index, events)
        delta = choice.get("delta")
        if (
            type(delta) is dict
            and len(delta) == 1
            and type(text := delta.get("content")) is str
            and text
            and choice.get("finish_reason", _ABSENT) is None
            and choice.get("logprobs") is None
            and _PLAIN_NAMES.issuperset(choice)
            and self._deltas.is_plain
        ):
            # The common case: nothing but text.
            self._by_delta.add(index)
            events.append(Text(index, text))
            return None
        return self._chat_choice(choice, index, events)

    def _odd_index(self, index: object, place: int) -> int:
        """A choice's index that is no number, or none at all: what it says, or its place in the chunk."""
        fault = faults.n.INDEX_INT if self._endpoint is Endpoint.CHAT else faults.cmpl.INDEX
        self._notes.note(fault, index)
        number = whole_number(index)
        return place if number is None else number

    def _chat_choice(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        notes = self._notes
        start = len(events)
        self._choice_extras(choice, index, events)
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(message, dict):
            notes.note(faults.delta.NOT_MESSAGE, message)
            if not delta or not isinstance(delta, dict):
                delta = self._deltas.new_in(message, index, has_deltas=index in self._by_delta)
        elif isinstance(delta, dict) and delta.get("content"):
            self._by_delta.add(index)
        if not isinstance(delta, dict):
            notes.note(faults.delta.OBJECT_PRESENT, choice)
            delta = {"content": choice["text"]} if isinstance(choice.get("text"), str) else {}
        value = choice.get("logprobs")
        value = None if value is None else logprobs.read_chat(scrub(value), notes)
        if value is not None and self._asked.top_logprobs is not None and index not in self._begun:
            value = self._of_text(value, delta.get("content"), index)
        riders: list[Event] = [] if value is None else [Logprobs(index, value)]
        self._deltas.read(delta, index, riders, events)
        return self._end_choice(choice, index, events, start)

    def _of_text(self, value: Json, text: object, index: int) -> Json | None:
        """The tokens of the text alone: our own engine cuts what stands before JSON, but not its tokens."""
        if not isinstance(text, str) or not text:
            return None
        self._begun.add(index)
        return logprobs.without_lead(value, text)

    def _completions_choice(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        notes = self._notes
        start = len(events)
        self._choice_extras(choice, index, events)
        text = choice.get("text")
        for shape in ("delta", "message"):
            if isinstance(choice.get(shape), dict):
                notes.note(faults.cmpl.NO_DELTA, choice)
                text = text if isinstance(text, str) and text else choice[shape].get("content")
        if not isinstance(text, str):
            notes.note(faults.cmpl.TEXT_STRING, choice)
            text = ""
        offset = self._offsets.get(index, 0)
        value = choice.get("logprobs")
        value = None if value is None else logprobs.read_completions(scrub(value), offset, notes)
        riders: list[Event] = [] if value is None else [Logprobs(index, value)]
        self._offsets[index] = offset + len(text)
        self._deltas.text(text, index, riders, events)
        return self._end_choice(choice, index, events, start)

    def _end_choice(self, choice: Json, index: int, events: list[Event], start: int) -> Failure | None:
        """Add why the choice ended, if it did; what it said in this chunk begins at `start`."""
        said = events[start:]
        word = self._finish_word(choice)
        if word is not None:
            reason = reason_for(word, self._endpoint)
            if reason is None:
                return interrupted(word, choice["finish_reason"])
            if self._endpoint is Endpoint.CHAT:
                self._note_finish(choice, said)
            events += self._deltas.close_choice(index)
            events.append(Finish(index, reason))
            self._finished.add(index)
        elif said and isinstance(said[-1], Extra | Logprobs):
            events.append(_now(index))
        return None

    def _note_finish(self, choice: Json, said: list[Event]) -> None:
        if any(not isinstance(event, Extra | Logprobs) for event in said):
            self._notes.note(faults.fin.OWN_CHUNK, choice)
        elif choice.get("delta"):
            self._notes.note(faults.delta.FINAL_EMPTY, choice)

    def _choice_extras(self, choice: Json, index: int, events: list[Event]) -> None:
        # `text` is a field of completions; beside a delta it is an unknown one.
        known = _CHAT_NAMES if self._is_chat and isinstance(choice.get("delta"), dict) else CHOICE_NAMES
        if not known.issuperset(choice):
            fields = scrub_object({key: value for key, value in choice.items() if key not in known})
            events.append(Extra(index, Place.CHOICE, fields))

    def _finish_word(self, choice: Json) -> str | None:
        """The upstream's word for why the choice ended; None while it goes on."""
        is_chat = self._endpoint is Endpoint.CHAT
        note = self._notes.note
        reason = choice.get("finish_reason", _ABSENT)
        if reason is None:
            return None
        if reason is _ABSENT:
            note(faults.fin.KEY_PRESENT if is_chat else faults.cmpl.FINISH, choice)
            return None
        if reason in ("", "null"):
            fault = faults.fin.NULL_NOT_STRING if reason else faults.fin.NULL_NOT_EMPTY
            note(fault if is_chat else faults.cmpl.FINISH, choice)
            return None
        if reason == "function_call" and not self._asked.functions:
            note(faults.fin.FUNCTION_CALL_LEGACY, choice)
        if not isinstance(reason, str) or reason not in REASONS[self._endpoint]:
            note(faults.fin.CLOSED_ENUM if is_chat else faults.cmpl.FINISH, reason)
        return word_of(reason)

    def _usage(self, chunk: Json, choices: list[object], events: list[Event], *, is_dummy: bool) -> None:
        """The counts, wherever they stood. A placeholder of zeros never hides a real count."""
        notes = self._notes
        if self._asked.usage is False and not self._asked.is_usage_ours:
            notes.note(faults.use.ONLY_IF_ASKED, chunk["usage"])
        elif choices and not is_dummy and not self._asked.continuous_usage:
            notes.note(faults.use.NULL_ELSEWHERE, chunk["usage"])
        if not isinstance(chunk.get("choices"), list) or is_dummy:
            notes.note(faults.use.CHOICES_EMPTY_ARRAY, chunk)
        if not choices or is_dummy:
            if self.has_usage_chunk:
                notes.note(faults.use.LAST, chunk["usage"])
            self.has_usage_chunk = True
        if not isinstance(chunk["usage"], dict):
            notes.note(faults.use.INTS, chunk["usage"])
            return
        usage = read_usage(scrub_object(chunk["usage"]), notes)
        if usage is None:
            return
        if self._is_zero:
            notes.note(faults.use.NOT_ZERO, chunk["usage"])
        self._is_zero = is_zero(usage)
        if is_zero(usage) and self._is_counted:
            return
        self._is_counted = not is_zero(usage)
        events.append(usage)


def _is_placeholder(chunk: Json) -> bool:
    """Whether a chunk without choices carries nothing else: no usage, and no field that needs a carrier."""
    return chunk.get("choices") == [] and _ENVELOPE.issuperset(name for name in chunk if chunk[name] is not None)


def _now(index: int) -> Extra:
    """What came in a chunk that says nothing else goes out with it, not with a later one."""
    return Extra(index, Place.CHOICE, {}, alone=True)
