"""Checks of the stream of /v1/completions, where it differs from that of chat."""

from collections.abc import Iterator

from welldone.rules.checks.end import done_missing
from welldone.rules.checks.env import member
from welldone.rules.checks.n import index_missing
from welldone.rules.checks.use import misshapen, usage_missing
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import cmpl as faults

REASONS = ("stop", "length", "content_filter")
LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _text_string(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        # Where a delta stands in its place, cmpl-no-delta speaks.
        if not isinstance(part.choice.get("text"), str) and "delta" not in part.choice:
            yield Place(part, part.choice, '"text":""')


def _no_delta(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if "delta" in part.choice:
            yield Place(part, part.choice, '"text":"<the new text>"')


def _object(heard: Heard) -> Iterator[Place]:
    for chunk in heard.chunks:
        if chunk.json.get("object") != "text_completion":
            yield Place(chunk, member(chunk, "object"), '"object":"text_completion"')


def _finish(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        reason = part.choice.get("finish_reason", ...)
        if reason is not None and reason not in REASONS:
            yield Place(part, part.choice, f"null, then one of {', '.join(REASONS)}")
    for choice in heard.choices:
        for part in choice.after_finish:
            yield Place(part, part.choice, f"nothing for choice {choice.key} after its finish_reason")
    for choice in heard.unfinished if heard.dones else []:
        yield Place(choice.parts[-1], f"no finish_reason for choice {choice.key}", '"finish_reason":"stop"')


def _logprobs(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        logprobs = part.choice.get("logprobs")
        if logprobs is not None and not _is_even(logprobs):
            yield Place(part, {"logprobs": logprobs}, f"null, or {', '.join(LOGPROBS)} as lists of one length")


def _is_even(logprobs: object) -> bool:
    """Whether it is an object with the four lists, all of one length."""
    lists = [logprobs.get(key) for key in LOGPROBS] if isinstance(logprobs, dict) else [None]
    lengths = {len(one) if isinstance(one, list) else -1 for one in lists}
    return len(lengths) == 1 and -1 not in lengths


def _usage_chunk(heard: Heard) -> Iterator[Place]:
    if heard.trace.wants_usage:
        yield from usage_missing(heard)
        yield from misshapen(heard)


def _id_constant(heard: Heard) -> Iterator[Place]:
    first = heard.chunks[0].json.get("id") if heard.chunks else None
    for chunk in heard.chunks:
        identity = chunk.json.get("id")
        if not isinstance(identity, str) or not identity.startswith("cmpl-") or identity != first:
            yield Place(chunk, member(chunk, "id"), '"id":"cmpl-...", the same on every chunk')


RULES = (
    Rule(faults.TEXT_STRING, _text_string),
    Rule(faults.NO_DELTA, _no_delta),
    Rule(faults.OBJECT, _object),
    Rule(faults.INDEX, index_missing),
    Rule(faults.FINISH, _finish),
    Rule(faults.LOGPROBS, _logprobs),
    Rule(faults.DONE, done_missing, needs=("end",)),
    Rule(faults.USAGE_CHUNK, _usage_chunk, needs=("request", "end")),
    Rule(faults.ID_CONSTANT, _id_constant),
)
