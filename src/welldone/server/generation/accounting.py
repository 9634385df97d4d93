"""Accounting of one answer: metrics, rate limits, fields of the request log, and the trace."""

from typing import NamedTuple

from welldone.core.catalog import BREAKING_RULES
from welldone.core.continuation import ContinuationWay
from welldone.core.events import Usage
from welldone.server.access.limits import RateLimiter
from welldone.server.context import RequestContext
from welldone.server.generation.answer import Answer
from welldone.server.generation.client_stream import ResponseState
from welldone.server.observe.counters import StreamTimes
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.tracing import AnswerFacts


class Accounting(NamedTuple):
    """Records answers."""

    metrics: Metrics
    limits: RateLimiter

    def end(self, ctx: RequestContext, model: str, times: StreamTimes, answer: Answer | None) -> None:
        """Record an answer at its end: repairs, times, tokens and failure. None if it could not begin."""
        metrics = self.metrics
        if answer is not None and answer.error is None:  # the model exists
            metrics.add_model(model)
        metrics.end_stream(times, model)
        if answer is None:
            return
        result = answer.pipeline.active.result
        usage, failure, repairs = result.usage, result.failure, result.repairs
        cached_tokens = 0 if usage is None else _cached_tokens(usage)
        if not answer.backend.is_third_party:
            # Our own engine deviates in the same way in every response: count only what breaks clients.
            repairs = [entry for entry in repairs if entry.rule in BREAKING_RULES]
        rules = tuple([entry.rule for entry in repairs])
        if rules:
            metrics.count_repairs(rules)
        if rules and answer.backend.is_third_party:
            ctx.log_fields["repaired"] = rules
        if upstream := answer.retries.upstream:
            if rules:
                metrics.count_upstream_repairs(upstream, rules)
            metrics.observe_upstream_times(upstream, times)
            ctx.log_fields |= answer.retries.log_fields
            content, arguments = result.invalid_json_count, result.invalid_arguments_count
            if content or arguments:
                metrics.count_broken_json(upstream, content=content, arguments=arguments)
                ctx.log_fields["broken_json"] = content + arguments
        tokens = answer.cost.billed_tokens(usage, is_complete=answer.client.state is ResponseState.COMPLETE)
        self.limits.charge_tokens(ctx.principal, tokens)
        metrics.count_retries(answer.retries.repeated)
        continuations = [(way, answer.continuation_outcome) for way in answer.continuations.ways]
        abandoned = [(ContinuationWay.REPLAY, "differed")] * answer.continuations.abandoned_replays
        for way, outcome in continuations + abandoned:
            metrics.count_continuation(way, outcome)
        if continuations:
            ctx.log_fields["continued"] = tuple(answer.continuations.ways)
        if ctx.trace is not None and ctx.trace.is_recording:
            facts = AnswerFacts(
                is_stream=answer.is_stream,
                response_model=answer.response_model,
                finish_reasons=answer.pipeline.active.finish_reasons,
                cached_tokens=cached_tokens,
                repairs=repairs,
                continuations=continuations,
            )
            ctx.trace.record_answer(facts)
        calls = {"printed_calls": result.text_tool_calls, "converted_calls": result.converted_calls}
        ctx.log_fields |= {name: count for name, count in calls.items() if count}
        waits = {"ttft_ms": times.ttft_s, "queued_ms": times.queued_s}
        ctx.log_fields |= {name: round(seconds * 1000, 1) for name, seconds in waits.items() if seconds is not None}
        if usage is not None:
            metrics.count_tokens(
                ctx.model,
                usage.prompt_tokens,
                usage.completion_tokens,
                cached=cached_tokens,
                prompt_s=max(0.0, (times.ttft_s or 0.0) - (times.queued_s or 0.0)),
                completion_s=times.gaps_s,
            )
            ctx.log_fields |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        if failure is not None and ctx.request.stream is not None:
            metrics.count_stream_failure(failure.code or failure.type)
            ctx.log_fields |= {"error": failure.code or failure.type, "reason": failure.message}


def _cached_tokens(usage: Usage) -> int:
    details = usage.extra_fields.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0
