"""Checks of the stream of /v1/completions, where it differs from that of chat."""

from collections.abc import Iterator

from welldone.rules.checks.end import done_missing
from welldone.rules.checks.env import chunk_member
from welldone.rules.checks.n import choice_index
from welldone.rules.checks.use import misshapen_usage_chunks, usage_missing
from welldone.rules.heard import TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

COMPLETIONS_FINISH_REASONS = ("stop", "length", "content_filter")
COMPLETIONS_LOGPROBS_MEMBERS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _text_string(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        # Where a delta stands in its place, cmpl-no-delta speaks.
        if not isinstance(part.choice.get("text"), str) and "delta" not in part.choice:
            yield Violation(part, part.choice, '"text":""')


def _no_delta(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if "delta" in part.choice:
            yield Violation(part, part.choice, '"text":"<the new text>"')


def _completions_object(view: TraceView) -> Iterator[Violation]:
    for chunk in view.chunks:
        if chunk.json.get("object") != "text_completion":
            yield Violation(chunk, chunk_member(chunk, "object"), '"object":"text_completion"')


def _completions_finish(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        reason = part.choice.get("finish_reason", ...)
        if reason is not None and reason not in COMPLETIONS_FINISH_REASONS:
            yield Violation(part, part.choice, f"null, then one of {', '.join(COMPLETIONS_FINISH_REASONS)}")
    for choice in view.choices:
        for part in choice.after_finish:
            yield Violation(part, part.choice, f"nothing for choice {choice.index} after its finish_reason")
    for choice in view.unfinished_choices if view.done_messages else []:
        yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", '"finish_reason":"stop"')


def _completions_logprobs(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        logprobs = part.choice.get("logprobs")
        if logprobs is not None and not _has_parallel_lists(logprobs):
            yield Violation(
                part,
                {"logprobs": logprobs},
                f"null, or {', '.join(COMPLETIONS_LOGPROBS_MEMBERS)} as lists of one length",
            )


def _has_parallel_lists(logprobs: object) -> bool:
    """Whether it is an object with the four lists, all of one length."""
    lists = [logprobs.get(key) for key in COMPLETIONS_LOGPROBS_MEMBERS] if isinstance(logprobs, dict) else [None]
    lengths = {len(one) if isinstance(one, list) else -1 for one in lists}
    return len(lengths) == 1 and -1 not in lengths


def _completions_usage_chunk(view: TraceView) -> Iterator[Violation]:
    if view.trace.wants_usage:
        yield from usage_missing(view)
        yield from misshapen_usage_chunks(view)


def _completions_id(view: TraceView) -> Iterator[Violation]:
    first = view.chunks[0].json.get("id") if view.chunks else None
    for chunk in view.chunks:
        identity = chunk.json.get("id")
        if not isinstance(identity, str) or not identity.startswith("cmpl-") or identity != first:
            yield Violation(chunk, chunk_member(chunk, "id"), '"id":"cmpl-...", the same on every chunk')


COMPLETIONS_CHECKS = (
    RuleCheck(faults.cmpl.TEXT_STRING, _text_string),
    RuleCheck(faults.cmpl.NO_DELTA, _no_delta),
    RuleCheck(faults.cmpl.OBJECT, _completions_object),
    RuleCheck(faults.cmpl.INDEX, choice_index),
    RuleCheck(faults.cmpl.FINISH, _completions_finish),
    RuleCheck(faults.cmpl.LOGPROBS, _completions_logprobs),
    RuleCheck(faults.cmpl.DONE, done_missing, required_fields=("end",)),
    RuleCheck(faults.cmpl.USAGE_CHUNK, _completions_usage_chunk, required_fields=("request", "end")),
    RuleCheck(faults.cmpl.ID_CONSTANT, _completions_id),
)
