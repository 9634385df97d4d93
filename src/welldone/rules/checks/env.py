"""Checks of the envelope: the members of a chunk around its choices."""

from collections.abc import Iterator

from welldone.rules.choices import is_int
from welldone.rules.heard import Heard, has_usage, is_without_choices
from welldone.rules.messages import Message
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import env as faults

OBJECT = "chat.completion.chunk"
TIERS = (None, "auto", "default", "flex", "scale", "priority")
TAKEN = frozenset(
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
ENVELOPE = frozenset({"id", "object", "created", "model", "choices", "system_fingerprint"})
"""Members of every chunk. One with no other members and no choice carries nothing."""
MILLISECONDS = 10**11
"""As seconds this is the year 5138, as milliseconds 1973: no `created` in seconds reaches it."""

_ABSENT = "absent"


def member(chunk: Message, key: str) -> object:
    """A member of a chunk as a fragment that can be shown."""
    return {key: chunk.json[key]} if key in chunk.json else f"no {key}"


def _object_const(heard: Heard) -> Iterator[Place]:
    for chunk in heard.envelopes:
        if chunk.json.get("object") != OBJECT:
            yield Place(chunk, member(chunk, "object"), f'"object":"{OBJECT}"')


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _id_present(heard: Heard) -> Iterator[Place]:
    for chunk in heard.envelopes:
        if not _is_id(chunk.json.get("id")):
            yield Place(chunk, member(chunk, "id"), '"id":"chatcmpl-...", the same on every chunk')


def _id_constant(heard: Heard) -> Iterator[Place]:
    yield from _changes("id", [chunk for chunk in heard.envelopes if _is_id(chunk.json.get("id"))])


def _changes(key: str, chunks: list[Message]) -> Iterator[Place]:
    first = chunks[0].json[key] if chunks else None
    wanted = f"{str(first)[:80]} as on the first chunk"
    for chunk in chunks:
        if chunk.json[key] != first:
            yield Place(chunk, member(chunk, key), wanted)


def _created_int(heard: Heard) -> Iterator[Place]:
    for chunk in heard.envelopes:
        created = chunk.json.get("created")
        if not is_int(created) or not 0 <= created < MILLISECONDS:
            yield Place(chunk, member(chunk, "created"), '"created":1700000000, whole seconds')


def _created_constant(heard: Heard) -> Iterator[Place]:
    yield from _changes("created", [chunk for chunk in heard.envelopes if is_int(chunk.json.get("created"))])


def _model_string(heard: Heard) -> Iterator[Place]:
    for chunk in heard.envelopes:
        if not isinstance(chunk.json.get("model"), str):
            yield Place(chunk, member(chunk, "model"), '"model":"<the name asked for>"')


def _choices_array(heard: Heard) -> Iterator[Place]:
    for chunk in heard.envelopes:
        if not isinstance(chunk.json.get("choices"), list):
            yield Place(chunk, member(chunk, "choices"), '"choices":[]')


def _no_error_key(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        if "error" in chunk.json:
            yield Place(chunk, member(chunk, "error"), "no error key")


def _usage_metadata(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        if has_usage(chunk) and is_without_choices(chunk):
            missing = [key for key in ("id", "object", "created", "model") if chunk.json.get(key) in (None, "")]
            if missing:
                yield Place(chunk, f"no {', '.join(missing)}", "id, object, created and model as on the other chunks")


def _fingerprint(heard: Heard) -> Iterator[Place]:
    values = [_comparable(chunk.json.get("system_fingerprint", _ABSENT)) for chunk in heard.envelopes]
    for chunk, value in zip(heard.envelopes, values, strict=True):
        if value != values[0]:
            wanted = f"system_fingerprint as on the first chunk: {str(values[0])[:80]}"
            yield Place(chunk, member(chunk, "system_fingerprint"), wanted)
            return  # once is enough: after one change each chunk would be a finding


def _comparable(value: object) -> str | None:
    """The value where it is cheap to compare; all others count as one."""
    return value if value is None or isinstance(value, str) else "no string"


def _service_tier(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        if chunk.json.get("service_tier") not in TIERS:
            yield Place(chunk, member(chunk, "service_tier"), "null, auto, default, flex, scale or priority")


def _extra_fields(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        for key in chunk.json.keys() & TAKEN:
            yield Place(chunk, member(chunk, key), f"no top-level {key}")


def _obfuscation(heard: Heard) -> Iterator[Place]:
    is_off = heard.trace.stream_option("include_obfuscation") is False
    for chunk in heard.chunks:
        if "obfuscation" in chunk.json and (is_off or not isinstance(chunk.json["obfuscation"], str)):
            wanted = "no obfuscation: the request turned it off" if is_off else '"obfuscation":"<padding>"'
            yield Place(chunk, member(chunk, "obfuscation"), wanted)


def _placeholder(heard: Heard) -> Iterator[Place]:
    if heard.placeholder:
        yield Place(heard.placeholder, heard.placeholder.json, "a first chunk with id, object and a choice")
    if heard.trace.wants_usage is False:
        return  # use-only-if-asked speaks
    for chunk in heard.envelopes:
        carried = {name for name, value in chunk.json.items() if value is not None} - ENVELOPE
        # Usage needs a carrier, and so do other fields, such as the prompt_filter_results of Azure.
        if chunk.json.get("choices") == [] and not carried:
            yield Place(chunk, chunk.json, "a chunk with a choice, or a comment")


_BOTH = ("chat", "completions")

RULES = (
    Rule(faults.OBJECT_CONST, _object_const),
    Rule(faults.ID_PRESENT, _id_present),
    Rule(faults.ID_CONSTANT, _id_constant),
    Rule(faults.CREATED_INT, _created_int, endpoints=_BOTH),
    Rule(faults.CREATED_CONSTANT, _created_constant),
    Rule(faults.MODEL_STRING, _model_string, endpoints=_BOTH),
    Rule(faults.CHOICES_ARRAY, _choices_array, endpoints=_BOTH),
    Rule(faults.NO_ERROR_KEY, _no_error_key),
    Rule(faults.METADATA_ON_USAGE_CHUNK, _usage_metadata),
    Rule(faults.FINGERPRINT, _fingerprint),
    Rule(faults.SERVICE_TIER, _service_tier),
    Rule(faults.EXTRA_FIELDS, _extra_fields),
    Rule(faults.OBFUSCATION, _obfuscation),
    Rule(faults.PLACEHOLDER_CHUNK, _placeholder),
)
