"""One chunk of a stream, as events: each field is read as it should be, or as it can be and noted."""

from welldone.protocol import catalog, fields
from welldone.protocol.deltas import CHOICE_FIELDS, CHUNK_FIELDS, RESERVED_FIELDS, DeltaReader, parse_index
from welldone.protocol.envelope import CHUNK_OBJECT, REPLY_OBJECT, Endpoint, Envelope, check_envelope, read_envelope
from welldone.protocol.events import (
    Event,
    Failure,
    FieldLocation,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Text,
    UnknownFields,
    Usage,
)
from welldone.protocol.fields import (
    bad_stream_failure,
    is_placeholder_usage,
    read_usage,
    usage_from_timings,
    usage_object,
)
from welldone.protocol.finish_reasons import FINISH_REASONS, finish_reason_for, finish_word, interrupted_failure
from welldone.protocol.lenient_json import scrub_json, scrub_object
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import CHAT_CHOICES_LIMIT, COMPLETIONS_CHOICES_LIMIT, RequestFacts

_ABSENT = object()
_ENVELOPE_FIELDS = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
_CHAT_CHOICE_FIELDS = CHOICE_FIELDS - {"text"}
_PLAIN_CHOICE_FIELDS = _CHAT_CHOICE_FIELDS - {"message"}
_SERVICE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority"})


class ChunkReader:
    """Events out of chunks. It keeps what one chunk says about the next: the envelope and halves of characters."""

    def __init__(self, endpoint: Endpoint, *, fallback: Envelope, facts: RequestFacts, repair_log: RepairLog) -> None:
        self.envelope: Envelope | None = None
        self._endpoint = endpoint
        self._is_chat = endpoint is Endpoint.CHAT
        self._object = CHUNK_OBJECT[endpoint]
        self._fallback = fallback
        self._facts = facts
        self._repair_log = repair_log
        self._deltas = DeltaReader(facts, repair_log)
        self._limit = CHAT_CHOICES_LIMIT if endpoint is Endpoint.CHAT else COMPLETIONS_CHOICES_LIMIT
        self._offsets: dict[int, int] = {}  # how much text each choice of a completion has given
        self._finished: set[int] = set()
        self._choices_with_deltas: set[int] = set()  # choices whose text comes in deltas, as it should
        self._logprobs_started: set[int] = set()  # choices whose first text with log probabilities has come
        self._was_placeholder_usage = False  # the last usage was a placeholder
        self._has_real_usage = False  # a usage that is no placeholder was heard
        self.has_usage_chunk = False
        """Whether usage came as it should: on a chunk without choices."""

    def read(self, chunk: Json, events: list[Event]) -> Failure | None:
        """Add the events of `chunk`; a failure where it tells that the answer is broken."""
        if not self._is_same_envelope(chunk):
            self._read_envelope(chunk)
        before = len(events)
        if not CHUNK_FIELDS.issuperset(chunk) or chunk.get("service_tier") is not None or self._facts.continuous_usage:
            self._read_unknown_fields(chunk, events)
        extras = len(events) - before
        choices = self._read_choices(chunk)
        if not choices and self.envelope is not None and _is_placeholder(chunk):
            is_unasked = self._facts.include_usage is False and not self._facts.is_usage_forced
            self._repair_log.record(catalog.use.ONLY_IF_ASKED if is_unasked else catalog.env.PLACEHOLDER_CHUNK, chunk)
        for place, choice in enumerate(choices):
            failure = self._read_choice(choice, place, events)
            if failure is not None:
                return failure
        if chunk.get("usage") is not None:
            is_dummy = bool(choices and self._finished) and len(events) == before + extras
            self._read_usage(chunk, choices, events, is_dummy=is_dummy)
        if choices and len(events) == before + extras:
            events.append(_flush_event(self._lowest_index(choices)) if extras else KeepAlive(is_chunk=True))
        return None

    def _is_same_envelope(self, chunk: Json) -> bool:
        head = self.envelope
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

    def _read_choices(self, chunk: Json) -> list[object]:
        choices = chunk.get("choices")
        if type(choices) is not list:
            self._repair_log.record(catalog.env.CHOICES_ARRAY, choices)
            return []
        if len(choices) > 1 and self._endpoint is Endpoint.CHAT:
            self._repair_log.record(catalog.n.ONE_CHOICE_PER_CHUNK)
        if choices and self.has_usage_chunk:
            self._repair_log.record(catalog.use.LAST, chunk)
        return choices

    @property
    def is_plain_text_safe(self) -> bool:
        """Whether a delta with nothing but text needs no look."""
        return self._deltas.is_plain_text_safe

    def expect_split_characters(self) -> None:
        """From here on strings may hold halves of characters."""
        self._deltas.expect_split_characters()

    def close(self) -> list[Event]:
        """What was held back."""
        return self._deltas.close()

    def _read_envelope(self, chunk: Json) -> None:
        choices = chunk.get("choices")
        if self.envelope is None:
            if not choices and not (chunk.get("id") and chunk.get("object")):
                self._repair_log.record(catalog.env.PLACEHOLDER_CHUNK, chunk)
                return
            self.envelope = read_envelope(scrub_object(chunk), self._endpoint, self._fallback)
        is_whole_reply = chunk.get("object") == REPLY_OBJECT[self._endpoint]
        check_envelope(chunk, self.envelope, self._endpoint, self._repair_log)
        is_usage_chunk = not choices and isinstance(chunk.get("usage"), dict) and not is_whole_reply
        if is_usage_chunk and not all(chunk.get(key) for key in ("id", "object", "created", "model")):
            self._repair_log.record(catalog.env.METADATA_ON_USAGE_CHUNK, chunk)

    def _read_unknown_fields(self, chunk: Json, events: list[Event]) -> None:
        fields = scrub_object({key: value for key, value in chunk.items() if key not in CHUNK_FIELDS})
        for name in RESERVED_FIELDS & fields.keys():
            self._repair_log.record(catalog.env.EXTRA_FIELDS, {name: fields[name]})
        tier = chunk.get("service_tier")
        if tier is not None:
            fields["service_tier"] = scrub_json(tier)
            if not isinstance(tier, str) or tier not in _SERVICE_TIERS:
                self._repair_log.record(catalog.env.SERVICE_TIER, tier)
        if "obfuscation" in fields and not self._is_obfuscation_allowed(fields["obfuscation"]):
            self._repair_log.record(catalog.env.OBFUSCATION, fields.pop("obfuscation"))
        if self._facts.continuous_usage and chunk.get("choices"):
            usage = self._continuous_usage(chunk, fields)
            fields |= {} if usage is None else {"usage": usage_object(usage)}
        if fields:
            events.append(UnknownFields(0, FieldLocation.CHUNK, fields))

    def _continuous_usage(self, chunk: Json, fields: Json) -> Usage | None:
        """The counts up to this chunk. llama.cpp gives them as timings, which stop strings need as well."""
        timings = fields.get("timings")
        if isinstance(chunk.get("usage"), dict):
            return read_usage(scrub_object(chunk["usage"]), self._repair_log)
        if not isinstance(timings, dict):
            return None
        if not self._facts.stop_strings:
            del fields["timings"]
        return usage_from_timings(timings)

    def _is_obfuscation_allowed(self, value: object) -> bool:
        return isinstance(value, str) and self._facts.allow_obfuscation is not False

    def _read_choice(self, choice: object, place: int, events: list[Event]) -> Failure | None:
        if type(choice) is not dict:
            self._repair_log.record(catalog.delta.OBJECT_PRESENT, choice)
            return None
        index = choice.get("index")
        if type(index) is not int or index < 0:
            index = self._infer_index(index, place)
        if index in self._finished:
            self._repair_log.record(catalog.fin.LAST_OF_CHOICE, choice)
        if index >= self._limit:
            return bad_stream_failure(f"a choice with the index {index}")
        if self._endpoint is Endpoint.COMPLETIONS:
            return self._read_completions_choice(choice, index, events)
        delta = choice.get("delta")
        if (
            type(delta) is dict
            and len(delta) == 1
            and type(text := delta.get("content")) is str
            and text
            and choice.get("finish_reason", _ABSENT) is None
            and choice.get("logprobs") is None
            and _PLAIN_CHOICE_FIELDS.issuperset(choice)
            and self._deltas.is_plain_text_safe
        ):
            # The common case: nothing but text.
            self._choices_with_deltas.add(index)
            events.append(Text(index, text))
            return None
        return self._read_chat_choice(choice, index, events)

    def _infer_index(self, index: object, place: int) -> int:
        """A choice's index that is no number, or none at all: what it says, or its place in the chunk."""
        fault = catalog.n.INDEX_INT if self._endpoint is Endpoint.CHAT else catalog.cmpl.INDEX
        self._repair_log.record(fault, index)
        number = parse_index(index)
        return place if number is None else number

    def _read_chat_choice(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        notes = self._repair_log
        start = len(events)
        self._read_choice_unknown_fields(choice, index, events)
        delta, message = choice.get("delta"), choice.get("message")
        if isinstance(message, dict):
            notes.record(catalog.delta.NOT_MESSAGE, message)
            if not delta or not isinstance(delta, dict):
                delta = self._deltas.message_to_delta(message, index, has_deltas=index in self._choices_with_deltas)
        elif isinstance(delta, dict) and delta.get("content"):
            self._choices_with_deltas.add(index)
        if not isinstance(delta, dict):
            notes.record(catalog.delta.OBJECT_PRESENT, choice)
            delta = {"content": choice["text"]} if isinstance(choice.get("text"), str) else {}
        value = choice.get("logprobs")
        value = None if value is None else fields.read_chat_logprobs(scrub_json(value), notes)
        if value is not None and self._facts.top_logprobs is not None and index not in self._logprobs_started:
            value = self._trim_logprobs(value, delta.get("content"), index)
        riders: list[Event] = [] if value is None else [Logprobs(index, value)]
        self._deltas.read(delta, index, riders, events)
        return self._read_finish(choice, index, events, start)

    def _trim_logprobs(self, value: Json, text: object, index: int) -> Json | None:
        """The tokens of the text alone: our own engine cuts what stands before JSON, but not its tokens."""
        if not isinstance(text, str) or not text:
            return None
        self._logprobs_started.add(index)
        return fields.drop_leading_logprobs(value, text)

    def _read_completions_choice(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        notes = self._repair_log
        start = len(events)
        self._read_choice_unknown_fields(choice, index, events)
        text = choice.get("text")
        for shape in ("delta", "message"):
            if isinstance(choice.get(shape), dict):
                notes.record(catalog.cmpl.NO_DELTA, choice)
                text = text if isinstance(text, str) and text else choice[shape].get("content")
        if not isinstance(text, str):
            notes.record(catalog.cmpl.TEXT_STRING, choice)
            text = ""
        offset = self._offsets.get(index, 0)
        value = choice.get("logprobs")
        value = None if value is None else fields.read_completions_logprobs(scrub_json(value), offset, notes)
        riders: list[Event] = [] if value is None else [Logprobs(index, value)]
        self._offsets[index] = offset + len(text)
        self._deltas.add_text(text, index, riders, events)
        return self._read_finish(choice, index, events, start)

    def _read_finish(self, choice: Json, index: int, events: list[Event], start: int) -> Failure | None:
        """Add why the choice ended, if it did; what it said in this chunk begins at `start`."""
        said = events[start:]
        word = self._finish_word(choice)
        if word is not None:
            reason = finish_reason_for(word, self._endpoint)
            if reason is None:
                return interrupted_failure(word, choice["finish_reason"])
            if self._endpoint is Endpoint.CHAT:
                self._check_finish(choice, said)
            events += self._deltas.close_choice(index)
            events.append(Finish(index, reason))
            self._finished.add(index)
        elif said and isinstance(said[-1], UnknownFields | Logprobs):
            events.append(_flush_event(index))
        return None

    def _check_finish(self, choice: Json, emitted: list[Event]) -> None:
        if any(not isinstance(event, UnknownFields | Logprobs) for event in emitted):
            self._repair_log.record(catalog.fin.OWN_CHUNK, choice)
        elif choice.get("delta"):
            self._repair_log.record(catalog.delta.FINAL_EMPTY, choice)

    def _read_choice_unknown_fields(self, choice: Json, index: int, events: list[Event]) -> None:
        # `text` is a field of completions; beside a delta it is an unknown one.
        known = _CHAT_CHOICE_FIELDS if self._is_chat and isinstance(choice.get("delta"), dict) else CHOICE_FIELDS
        if not known.issuperset(choice):
            fields = scrub_object({key: value for key, value in choice.items() if key not in known})
            events.append(UnknownFields(index, FieldLocation.CHOICE, fields))

    def _finish_word(self, choice: Json) -> str | None:
        """The upstream's word for why the choice ended; None while it goes on."""
        is_chat = self._endpoint is Endpoint.CHAT
        note = self._repair_log.record
        reason = choice.get("finish_reason", _ABSENT)
        if reason is None:
            return None
        if reason is _ABSENT:
            note(catalog.fin.KEY_PRESENT if is_chat else catalog.cmpl.FINISH, choice)
            return None
        if reason in ("", "null"):
            fault = catalog.fin.NULL_NOT_STRING if reason else catalog.fin.NULL_NOT_EMPTY
            note(fault if is_chat else catalog.cmpl.FINISH, choice)
            return None
        if reason == "function_call" and not self._facts.uses_legacy_functions:
            note(catalog.fin.FUNCTION_CALL_LEGACY, choice)
        if not isinstance(reason, str) or reason not in FINISH_REASONS[self._endpoint]:
            note(catalog.fin.CLOSED_ENUM if is_chat else catalog.cmpl.FINISH, reason)
        return finish_word(reason)

    def _read_usage(self, chunk: Json, choices: list[object], events: list[Event], *, is_dummy: bool) -> None:
        """The counts, wherever they stood. A placeholder of zeros never hides a real count."""
        notes = self._repair_log
        if self._facts.include_usage is False and not self._facts.is_usage_forced:
            notes.record(catalog.use.ONLY_IF_ASKED, chunk["usage"])
        elif choices and not is_dummy and not self._facts.continuous_usage:
            notes.record(catalog.use.NULL_ELSEWHERE, chunk["usage"])
        if not isinstance(chunk.get("choices"), list) or is_dummy:
            notes.record(catalog.use.CHOICES_EMPTY_ARRAY, chunk)
        if not choices or is_dummy:
            if self.has_usage_chunk:
                notes.record(catalog.use.LAST, chunk["usage"])
            self.has_usage_chunk = True
        if not isinstance(chunk["usage"], dict):
            notes.record(catalog.use.INTS, chunk["usage"])
            return
        usage = read_usage(scrub_object(chunk["usage"]), notes)
        if usage is None:
            return
        if self._was_placeholder_usage:
            notes.record(catalog.use.NOT_ZERO, chunk["usage"])
        self._was_placeholder_usage = is_placeholder_usage(usage)
        if is_placeholder_usage(usage) and self._has_real_usage:
            return
        self._has_real_usage = not is_placeholder_usage(usage)
        events.append(usage)


def _is_placeholder(chunk: Json) -> bool:
    """Whether a chunk without choices carries nothing else: no usage, and no field that needs a carrier."""
    return chunk.get("choices") == [] and _ENVELOPE_FIELDS.issuperset(name for name in chunk if chunk[name] is not None)


def _flush_event(index: int) -> UnknownFields:
    """What came in a chunk that says nothing else goes out with it, not with a later one."""
    return UnknownFields(index, FieldLocation.CHOICE, {}, in_own_chunk=True)
