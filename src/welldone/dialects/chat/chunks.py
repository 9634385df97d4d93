"""Reader from the JSON chunks of chat and completions streams to events. Violations are recorded."""

from collections.abc import Mapping

from welldone.core import events as ev
from welldone.core import fields
from welldone.core.envelope import CHUNK_OBJECT, REPLY_OBJECT, Endpoint, Envelope, check_envelope, read_envelope
from welldone.core.events import Event, Failure, Json, Usage
from welldone.core.finish_reasons import finish_reason_for, finish_word, interrupted_failure
from welldone.core.lenient_json import scrub_json, scrub_object
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import CHAT_CHOICES_LIMIT, COMPLETIONS_CHOICES_LIMIT, RequestFacts
from welldone.core.state import NO_INDEXES, with_index
from welldone.dialects.chat.deltas import (
    CHOICE_FIELDS,
    CHUNK_FIELDS,
    REASONING_FIELDS,
    RESERVED_FIELDS,
    DeltaReader,
    parse_index,
)

_ABSENT = object()
_ATTACHED_EVENTS = frozenset({ev.UnknownFields, ev.Logprobs, Usage})  # they have no chunk of their own
_ENVELOPE_FIELDS = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
_CHAT_CHOICE_FIELDS = CHOICE_FIELDS - {"text"}
_PLAIN_CHOICE_FIELDS = _CHAT_CHOICE_FIELDS - {"message"}
_CHAT_CONTENT = ("tool_calls", "function_call", "refusal", *REASONING_FIELDS)
_SERVICE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority"})


class ChunkReader:
    """Reads chunks; stores the envelope, split characters and finished choices between chunks."""

    def __init__(self, endpoint: Endpoint, *, fallback: Envelope, facts: RequestFacts, repair_log: RepairLog) -> None:
        self.envelope: Envelope | None = None
        self.finish_reasons: Mapping[str, str] = {}
        """OpenAI's finish reasons by words of this upstream."""
        self._endpoint = endpoint
        self._is_chat = endpoint.is_chat
        self._object = CHUNK_OBJECT[endpoint]
        self._fallback = fallback
        self._facts = facts
        self._repair_log = repair_log
        self.deltas: DeltaReader = DeltaReader(facts, repair_log)
        self._limit = CHAT_CHOICES_LIMIT if self._is_chat else COMPLETIONS_CHOICES_LIMIT
        self._offsets: dict[int, int] = {}  # text length of each choice of a completion
        self.finished: frozenset[int] = NO_INDEXES
        """Choices with a finish reason."""
        self._started: frozenset[int] = NO_INDEXES
        self._logprobs_started: frozenset[int] = NO_INDEXES  # choices with a text that has log probabilities
        self.was_placeholder_usage: bool = False
        """Whether the last usage was a placeholder of zeros."""
        self._has_real_usage = False  # a usage that is not a placeholder was received
        self.has_usage_chunk: bool = False
        """Whether usage was received on a chunk without choices, as specified."""

    @property
    def is_finished(self) -> bool:
        """Whether every choice, and the requested number of choices, has a finish reason."""
        return self.finished >= self._started and len(self.finished) >= (self._facts.choice_count or 1)

    def read(self, chunk: Json, events: list[Event]) -> Failure | None:
        """Append the events of `chunk`; return a failure if the answer cannot be continued."""
        envelope = self.envelope
        if (
            envelope is None
            or chunk.get("id") != envelope.id
            or chunk.get("created") != envelope.created
            or chunk.get("model") != envelope.model
            or chunk.get("object") != self._object
            or chunk.get("system_fingerprint") != envelope.fingerprint
        ):
            self._read_envelope(chunk)
        before = len(events)
        if not CHUNK_FIELDS.issuperset(chunk) or chunk.get("service_tier") is not None or self._facts.continuous_usage:
            self._read_unknown_fields(chunk, events)
        extras = len(events) - before
        choices = chunk.get("choices")
        if type(choices) is not list:
            is_choice = isinstance(choices, dict) and not CHOICE_FIELDS.isdisjoint(choices)
            self._repair_log.drop("env-choices-array", None if is_choice else choices)
            if self._repair_log.lost is not None:
                return fields.broken_rule_failure(self._repair_log)
            choices = [choices] if is_choice else []
        if len(choices) > 1 and self._is_chat:
            self._repair_log.record("n-one-choice-per-chunk")
        if choices and self.has_usage_chunk:
            self._repair_log.record("use-last", chunk)
        if not choices and chunk.get("usage") is None and self.envelope is not None and _is_placeholder(chunk):
            is_unrequested = self._facts.include_usage is False and not self._facts.is_usage_forced
            rule = "use-only-if-asked" if is_unrequested else "env-placeholder-chunk"
            self._repair_log.record(rule, chunk)
        for position, choice in enumerate(choices):
            failure = self._read_choice(choice, position, events)
            if failure is not None:
                return failure
        is_empty = bool(choices) and len(events) == before + extras
        if chunk.get("usage") is not None:
            self._read_usage(chunk, choices, events, is_dummy=is_empty and bool(self.finished))
        if is_empty and (extras or len(events) == before):
            indexes = [choice.get("index") for choice in choices if isinstance(choice, dict)]
            lowest = min((index for index in indexes if type(index) is int and index >= 0), default=0)
            events.append(_flush_event(lowest) if extras else ev.KeepAlive(is_chunk=True))
        return None

    def _read_envelope(self, chunk: Json) -> None:
        choices = chunk.get("choices")
        if self.envelope is None:
            if not choices and not (chunk.get("id") and chunk.get("object")):
                self._repair_log.record("env-placeholder-chunk", chunk)
                return
            self.envelope = read_envelope(chunk, self._endpoint, self._fallback)
        is_whole_reply = chunk.get("object") == REPLY_OBJECT[self._endpoint]
        check_envelope(chunk, self.envelope, self._endpoint, self._repair_log)
        is_usage_chunk = not choices and isinstance(chunk.get("usage"), dict) and not is_whole_reply
        if is_usage_chunk and not all(chunk.get(key) for key in ("id", "object", "created", "model")):
            self._repair_log.record("env-metadata-on-usage-chunk", chunk)

    def _read_unknown_fields(self, chunk: Json, events: list[Event]) -> None:
        unknown = scrub_object({key: value for key, value in chunk.items() if key not in CHUNK_FIELDS})
        for name in RESERVED_FIELDS & unknown.keys():
            self._repair_log.record("env-extra-fields", {name: unknown[name]})
        tier = chunk.get("service_tier")
        if tier is not None:
            unknown["service_tier"] = scrub_json(tier)
            if not isinstance(tier, str) or tier not in _SERVICE_TIERS:
                self._repair_log.record("env-service-tier", tier)
        if "obfuscation" in unknown and (
            not isinstance(unknown["obfuscation"], str) or self._facts.allow_obfuscation is False
        ):
            padding = unknown.pop("obfuscation")
            self._repair_log.drop("env-obfuscation", padding if isinstance(padding, dict | list) else None)
        if self._facts.continuous_usage and chunk.get("choices"):
            usage = self._continuous_usage(chunk, unknown)
            unknown |= {} if usage is None else {"usage": fields.usage_object(usage)}
        if unknown:
            events.append(ev.UnknownFields(0, ev.FieldLocation.CHUNK, unknown))

    def _continuous_usage(self, chunk: Json, unknown: Json) -> Usage | None:
        """Usage up to this chunk. llama.cpp sends it as `timings`, which the stop string filter needs as well."""
        timings = unknown.get("timings")
        if isinstance(chunk.get("usage"), dict):
            return fields.read_usage(scrub_object(chunk["usage"]), self._repair_log)
        if not isinstance(timings, dict):
            return None
        if not self._facts.stop_strings:
            del unknown["timings"]
        return fields.usage_from_timings(timings)

    def _read_choice(self, choice: object, position: int, events: list[Event]) -> Failure | None:
        if type(choice) is not dict:
            choice = self._repair_log.read_object(choice, "delta-object-present")
            if not choice:
                return fields.broken_rule_failure(self._repair_log)
        index = choice.get("index")
        if type(index) is not int or index < 0:
            self._repair_log.record("n-index-int" if self._is_chat else "cmpl-index", index)
            number = parse_index(index)
            index = position if number is None else number
        if index in self.finished:
            self._repair_log.record("fin-last-of-choice", choice)
        if index >= self._limit:
            return fields.bad_stream_failure(f"a choice with the index {index}")
        if index not in self._started:
            self._started = with_index(self._started, index)
        if not self._is_chat:
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
            and self.deltas.is_plain_text_safe
        ):
            # Common case: only text.
            self.deltas.received.add((index, ev.Text))
            events.append(ev.Text(index, text))
            return None
        return self._read_chat_choice(choice, index, events)

    def _read_chat_choice(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        repair_log = self._repair_log
        start = len(events)
        error = self._read_choice_unknown_fields(choice, index, events)
        delta, message = choice.get("delta"), choice.get("message")
        if not isinstance(delta, dict):
            is_absent = delta is None and message is not None
            delta = {} if is_absent else repair_log.read_object(delta, "delta-object-present")
            delta = delta or ({} if message else {"content": choice.get("text")})
        if message is not None:
            repair_log.record("delta-not-message", message)
            # A text beside deltas is no message: some servers send "success".
            if isinstance(message, dict | list) or not (delta or (index, ev.Text) in self.deltas.received):
                message = repair_log.read_object(message, "delta-not-message")
                delta = self.deltas.add_message(delta, message, index)
        value = choice.get("logprobs")
        value = None if value is None else fields.read_chat_logprobs(scrub_json(value), repair_log)
        if value is not None and self._facts.top_logprobs is not None and index not in self._logprobs_started:
            # Keep the tokens of the text: the local engine strips text before JSON, but not its tokens.
            text = delta.get("content")
            if isinstance(text, str) and text:
                self._logprobs_started = with_index(self._logprobs_started, index)
                value = fields.drop_leading_logprobs(value, text)
            else:
                value = None
        logprobs: list[Event] = [] if value is None else [ev.Logprobs(index, value)]
        if delta:
            self.deltas.read(delta, index, logprobs, events)
        else:
            events += logprobs
        return error or self._read_finish(choice, index, events, start)

    def _read_completions_choice(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        repair_log = self._repair_log
        start = len(events)
        error = self._read_choice_unknown_fields(choice, index, events)
        text = choice.get("text")
        for shape in ("delta", "message"):
            if choice.get(shape) is not None:
                repair_log.record("cmpl-no-delta", choice)
                members = scrub_object(repair_log.read_object(choice[shape], "cmpl-no-delta"))
                members.pop("role", None)
                repair_log.drop("cmpl-no-delta", [members.pop(name, None) for name in _CHAT_CONTENT])
                content = members.pop("content", None)
                if shape == "message":
                    beside = {"content": text} if text else {}
                    text = self.deltas.add_message(beside, {"content": content}, index).get("content") or text
                elif text and text != content:
                    repair_log.drop("cmpl-no-delta", content)
                else:
                    text = content
                if members:
                    events.append(ev.UnknownFields(index, ev.FieldLocation.CHOICE, members))
        if not isinstance(text, str):
            repair_log.drop("cmpl-text-string", text)
            text = ""
        offset = self._offsets.get(index, 0)
        value = choice.get("logprobs")
        value = None if value is None else fields.read_completions_logprobs(scrub_json(value), offset, repair_log)
        logprobs: list[Event] = [] if value is None else [ev.Logprobs(index, value)]
        self.add_text_length(index, len(text))
        self.deltas.add_text(text, index, logprobs, events)
        return error or self._read_finish(choice, index, events, start)

    def add_text_length(self, index: int, characters: int) -> None:
        """Count the text of a choice of a completion, to which offsets of log probabilities refer."""
        self._offsets[index] = self._offsets.get(index, 0) + characters

    def _read_finish(self, choice: Json, index: int, events: list[Event], start: int) -> Failure | None:
        """Append the finish of the choice, if any; its events of this chunk start at `start`."""
        if self._repair_log.lost is not None:
            return fields.broken_rule_failure(self._repair_log)
        emitted = events[start:]
        word = None if choice.get("finish_reason", _ABSENT) is None else self._finish_word(choice)
        if word is not None:
            reason = finish_reason_for(word, self._endpoint, self.finish_reasons)
            if reason is None:
                return interrupted_failure(word, choice["finish_reason"])
            if self._is_chat and not _ATTACHED_EVENTS.issuperset(map(type, emitted)):
                self._repair_log.record("fin-own-chunk", choice)
            elif self._is_chat and choice.get("delta"):
                self._repair_log.record("delta-final-empty", choice)
            events += self.deltas.close_choice(index)
            events.append(ev.Finish(index, reason))
            self.finished = with_index(self.finished, index)
        elif emitted and type(emitted[-1]) in _ATTACHED_EVENTS:
            events.append(_flush_event(index))
        return None

    def _read_choice_unknown_fields(self, choice: Json, index: int, events: list[Event]) -> Failure | None:
        """Append the unknown fields of a choice, and its usage; return its error (OpenRouter), if it has one."""
        # `text` is a field of completions; next to a delta it is an unknown field.
        has_delta = isinstance(choice.get("delta"), dict) or choice.get("delta") or choice.get("message")
        known = _CHAT_CHOICE_FIELDS if self._is_chat and has_delta else CHOICE_FIELDS
        if known.issuperset(choice):
            return None
        unknown = scrub_object({key: value for key, value in choice.items() if key not in known})
        failure = None
        if fields.has_error(choice):
            self._repair_log.record("err-not-with-choices", choice)
            failure = fields.read_error({"error": unknown.pop("error")}, b"", RepairLog())
        if isinstance(unknown.get("usage"), dict) and choice.get("finish_reason") and not self._has_real_usage:
            self._read_choice_usage(unknown["usage"], events)
        if unknown:
            events.append(ev.UnknownFields(index, ev.FieldLocation.CHOICE, unknown))
        return failure

    def _read_choice_usage(self, value: Json, events: list[Event]) -> None:
        """Read the usage of the only choice (Moonshot). A usage chunk replaces it."""
        usage = fields.read_usage(value, RepairLog())
        is_only = self._facts.choice_count in (None, 1) and len(self._started) == 1
        if usage is not None and not fields.is_placeholder_usage(usage) and is_only:
            self._repair_log.record_if(self._facts.include_usage is not False, "use-null-elsewhere", value)
            self._has_real_usage = True
            events.append(usage)

    def _finish_word(self, choice: Json) -> str | None:
        """The finish reason of the upstream as a string; None while the choice continues."""
        record = self._repair_log.record
        reason = choice.get("finish_reason", _ABSENT)
        if reason is _ABSENT:
            record("fin-key-present" if self._is_chat else "cmpl-finish", choice)
            return None
        if reason in ("", "null"):
            rule = "fin-null-not-string" if reason else "fin-null-not-empty"
            record(rule if self._is_chat else "cmpl-finish", choice)
            return None
        if reason == "function_call" and not self._facts.uses_legacy_functions:
            record("fin-function-call-legacy", choice)
        if not isinstance(reason, str) or reason not in self._endpoint.finish_reasons:
            record("fin-closed-enum" if self._is_chat else "cmpl-finish", reason)
        return finish_word(reason)

    def _read_usage(self, chunk: Json, choices: list[object], events: list[Event], *, is_dummy: bool) -> None:
        """Read usage on any chunk. A placeholder of zeros does not replace a real count."""
        repair_log = self._repair_log
        if self._facts.include_usage is False and not self._facts.is_usage_forced:
            repair_log.record("use-only-if-asked", chunk["usage"])
        elif choices and not is_dummy and not self._facts.continuous_usage:
            repair_log.record("use-null-elsewhere", chunk["usage"])
        if not isinstance(chunk.get("choices"), list) or is_dummy:
            repair_log.record("use-choices-empty-array", chunk)
        if not choices or is_dummy:
            if self.has_usage_chunk:
                repair_log.record("use-last", chunk["usage"])
            self.has_usage_chunk = True
        value = chunk["usage"]
        repair_log.record_if(not isinstance(value, dict), "use-ints", value)
        usage = fields.read_usage(scrub_object(value), repair_log) if isinstance(value, dict) else None
        if usage is None:
            if unread := fields.unread_usage(value):
                events.append(ev.UnknownFields(0, ev.FieldLocation.CHUNK, unread, in_own_chunk=not choices))
            return
        if self.was_placeholder_usage:
            repair_log.record("use-not-zero", chunk["usage"])
        self.was_placeholder_usage = fields.is_placeholder_usage(usage)
        if self.was_placeholder_usage and self._has_real_usage:
            return
        self._has_real_usage = not self.was_placeholder_usage
        events.append(usage)


def _is_placeholder(chunk: Json) -> bool:
    """Whether a chunk has neither choices nor usage nor unknown fields."""
    return chunk.get("choices") == [] and _ENVELOPE_FIELDS.issuperset(name for name in chunk if chunk[name] is not None)


def _flush_event(index: int) -> ev.UnknownFields:
    """Event that sends pending fields on a chunk of their own, as received, and not with a later chunk."""
    return ev.UnknownFields(index, ev.FieldLocation.CHOICE, {}, in_own_chunk=True)
