"""Checks of the envelope: the members of a chunk around its choices."""

from collections.abc import Iterator

from welldone.rules.choices import is_int
from welldone.rules.heard import TraceView, has_usage, is_without_choices
from welldone.rules.messages import StreamMessage
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

CHUNK_OBJECT = "chat.completion.chunk"
SERVICE_TIERS = (None, "auto", "default", "flex", "scale", "priority")
RESERVED_NAMES = frozenset(
    (
        "event",
        "data",
        "delta",
        "message",
        "role",
        "content",
        "finish_reason",
        "index",
        "logprobs",
        "tool_calls",
        "text",
    )
)
"""Names that mean something elsewhere in the protocol."""
ENVELOPE_MEMBERS = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
"""Members of every chunk. One with no other members and no choice carries nothing."""
MIN_MILLISECONDS = 10**11
"""As seconds this is the year 5138, as milliseconds 1973: no `created` in seconds reaches it."""

_ABSENT = "absent"


def chunk_member(chunk: StreamMessage, key: str) -> object:
    """A member of a chunk as a fragment that can be shown."""
    return {key: chunk.json[key]} if key in chunk.json else f"no {key}"


def _object_const(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if chunk.json.get("object") != CHUNK_OBJECT:
            yield Violation(chunk, chunk_member(chunk, "object"), f'"object":"{CHUNK_OBJECT}"')


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _id_present(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if not _is_id(chunk.json.get("id")):
            yield Violation(chunk, chunk_member(chunk, "id"), '"id":"chatcmpl-...", the same on every chunk')


def _id_constant(view: TraceView) -> Iterator[Violation]:
    yield from _changed_values("id", [chunk for chunk in view.enveloped_chunks if _is_id(chunk.json.get("id"))])


def _changed_values(key: str, chunks: list[StreamMessage]) -> Iterator[Violation]:
    first = chunks[0].json[key] if chunks else None
    wanted = f"{str(first)[:80]} as on the first chunk"
    for chunk in chunks:
        if chunk.json[key] != first:
            yield Violation(chunk, chunk_member(chunk, key), wanted)


def _created_int(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        created = chunk.json.get("created")
        if not is_int(created) or not 0 <= created < MIN_MILLISECONDS:
            yield Violation(chunk, chunk_member(chunk, "created"), '"created":1700000000, whole seconds')


def _created_constant(view: TraceView) -> Iterator[Violation]:
    yield from _changed_values(
        "created", [chunk for chunk in view.enveloped_chunks if is_int(chunk.json.get("created"))]
    )


def _model_string(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if not isinstance(chunk.json.get("model"), str):
            yield Violation(chunk, chunk_member(chunk, "model"), '"model":"<the name asked for>"')


def _choices_array(view: TraceView) -> Iterator[Violation]:
    for chunk in view.enveloped_chunks:
        if not isinstance(chunk.json.get("choices"), list):
            yield Violation(chunk, chunk_member(chunk, "choices"), '"choices":[]')


def _no_error_key(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if "error" in chunk.json:
            yield Violation(chunk, chunk_member(chunk, "error"), "no error key")


def _usage_metadata(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if has_usage(chunk) and is_without_choices(chunk):
            missing = [key for key in ("id", "object", "created", "model") if chunk.json.get(key) in (None, "")]
            if missing:
                yield Violation(
                    chunk, f"no {', '.join(missing)}", "id, object, created and model as on the other chunks"
                )


def _fingerprint(view: TraceView) -> Iterator[Violation]:
    values = [_comparable(chunk.json.get("system_fingerprint", _ABSENT)) for chunk in view.enveloped_chunks]
    for chunk, value in zip(view.enveloped_chunks, values, strict=True):
        if value != values[0]:
            wanted = f"system_fingerprint as on the first chunk: {str(values[0])[:80]}"
            yield Violation(chunk, chunk_member(chunk, "system_fingerprint"), wanted)
            return  # once is enough: after one change each chunk would be a finding


def _comparable(value: object) -> str | None:
    """The value where it is cheap to compare; all others count as one."""
    return value if value is None or isinstance(value, str) else "no string"


def _service_tier(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if chunk.json.get("service_tier") not in SERVICE_TIERS:
            yield Violation(chunk, chunk_member(chunk, "service_tier"), "null, auto, default, flex, scale or priority")


def _extra_fields(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        for key in chunk.json.keys() & RESERVED_NAMES:
            yield Violation(chunk, chunk_member(chunk, key), f"no top-level {key}")


def _obfuscation(view: TraceView) -> Iterator[Violation]:
    is_off = view.trace.stream_option("include_obfuscation") is False
    for chunk in view.chunks:
        if "obfuscation" in chunk.json and (is_off or not isinstance(chunk.json["obfuscation"], str)):
            wanted = "no obfuscation: the request turned it off" if is_off else '"obfuscation":"<padding>"'
            yield Violation(chunk, chunk_member(chunk, "obfuscation"), wanted)


def _placeholder(view: TraceView) -> Iterator[Violation]:
    if view.placeholder_chunk:
        yield Violation(
            view.placeholder_chunk, view.placeholder_chunk.json, "a first chunk with id, object and a choice"
        )
    if view.trace.wants_usage is False:
        return  # use-only-if-asked speaks
    for chunk in view.enveloped_chunks:
        carried = {name for name, value in chunk.json.items() if value is not None} - ENVELOPE_MEMBERS
        # Usage needs a carrier, and so do other fields, such as the prompt_filter_results of Azure.
        if chunk.json.get("choices") == [] and not carried:
            yield Violation(chunk, chunk.json, "a chunk with a choice, or a comment")


_CHUNK_ENDPOINTS = ("chat", "completions")

ENVELOPE_CHECKS = (
    RuleCheck(faults.env.OBJECT_CONST, _object_const),
    RuleCheck(faults.env.ID_PRESENT, _id_present),
    RuleCheck(faults.env.ID_CONSTANT, _id_constant),
    RuleCheck(faults.env.CREATED_INT, _created_int, endpoints=_CHUNK_ENDPOINTS),
    RuleCheck(faults.env.CREATED_CONSTANT, _created_constant),
    RuleCheck(faults.env.MODEL_STRING, _model_string, endpoints=_CHUNK_ENDPOINTS),
    RuleCheck(faults.env.CHOICES_ARRAY, _choices_array, endpoints=_CHUNK_ENDPOINTS),
    RuleCheck(faults.env.NO_ERROR_KEY, _no_error_key),
    RuleCheck(faults.env.METADATA_ON_USAGE_CHUNK, _usage_metadata),
    RuleCheck(faults.env.FINGERPRINT, _fingerprint),
    RuleCheck(faults.env.SERVICE_TIER, _service_tier),
    RuleCheck(faults.env.EXTRA_FIELDS, _extra_fields),
    RuleCheck(faults.env.OBFUSCATION, _obfuscation),
    RuleCheck(faults.env.PLACEHOLDER_CHUNK, _placeholder),
)
