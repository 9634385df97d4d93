"""Continuation of answers by other attempts: which way a backend supports, the request for the rest, and the record.

`core/continuation.py` decides and checks; this module knows settings and backends, and counts tokens.
"""

import logging
from functools import partial

import msgspec

from welldone.core.continuation import (
    Continuation,
    ContinuationWay,
    Delivered,
    PrefillStyle,
    continued_body,
    plan_continuation,
    survives_failure,
)
from welldone.core.events import Json
from welldone.core.lenient_json import as_positive_int
from welldone.engines.supervisor import ModelState
from welldone.gateway.backends import Backend, BackendLease, LocalBackend
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.upstream import Upstream
from welldone.server.generation.retry import INPUT_TOKENS_PATH, JsonRequest
from welldone.server.observe import log
from welldone.server.observe.counters import StreamTimes

OFF = "off"
NO_WAY = "none"
"""Metric label of an answer that could not be continued."""
_SHORT_REPLAY_S = 2.0
"""Generation time of a delivered text up to which it is generated again. Its client waits for so long."""
_TOKENS_LIMIT = 1_000_000  # of the delivered text, which has at most a megabyte
_tokenize_request = partial(
    JsonRequest, path="/tokenize", is_root=True, param="", values_limit=_TOKENS_LIMIT, limit_bytes=8 * 2**20
)
_input_tokens_request = partial(JsonRequest, path=INPUT_TOKENS_PATH, param="", values_limit=1_000, limit_bytes=2**16)
_KINDS_WITH_PREFILL_FIELDS = {"vllm"}
"""Servers that are recognised with certainty, and have supported `continue_final_message` for years."""


def prefill_style(upstream: Upstream | None, *, is_builtin: bool) -> PrefillStyle | None:
    """Return how an upstream, or the local engine if it is None, continues a text; None if it does not."""
    if upstream is None:
        return PrefillStyle.ENGINE if is_builtin else None
    settings = upstream.settings
    if settings.think != "no" or settings.text != "delta":  # the text may start with reasoning, or with the prefill
        return None
    match settings.continues:
        case "prefill":
            return PrefillStyle.MESSAGE
        case "continue_final_message":
            return PrefillStyle.FIELDS
        case "auto" if settings.is_dynamic:  # replicas run the built-in engine
            return PrefillStyle.ENGINE
        case "auto" if upstream.kind in _KINDS_WITH_PREFILL_FIELDS:
            return PrefillStyle.FIELDS
        case _:
            return None


class Continuations:
    """The continuations of one response."""

    def __init__(self, backend: Backend, setting: str, request_id: str, times: StreamTimes) -> None:
        self.is_on: bool = setting != OFF
        self.ways: list[str] = []
        """The way of each continuation; `none` where there was no way."""
        self.abandoned_replays: int = 0
        """Replays that differed, and after which the answer went on in another way."""
        self._times = times
        self.models: dict[int, str] = {}
        """The model of each part at the backend of its first attempt."""
        self._backend = backend
        # Without Jinja the engine renders messages with a built-in template, for which this was not verified.
        self._is_builtin = (
            isinstance(backend, LocalBackend) and not backend.is_third_party and backend.model.settings.jinja
        )
        self._request_id = request_id
        self._failures: dict[int, AttemptFailure] = {}  # of parts that are being continued

    def may_continue(self, body: Json, delivered: Delivered, failure: AttemptFailure) -> bool:
        """Whether there is a way to continue an answer after this failure."""
        upstreams: list[Upstream | None] = list(self._backend.upstreams)
        if isinstance(self._backend, LocalBackend):
            # An engine that hangs would hang again. One that an operator unloads may be loaded again.
            is_stopped = self._backend.model.state is ModelState.STOPPED
            upstreams = [None] if (failure.is_disconnect or failure.has_differed) and not is_stopped else []
        return any(self._plan(body, delivered, failure, upstream) is not None for upstream in upstreams)

    def survives_restart(self, body: Json, delivered: Delivered) -> bool:
        """Whether an answer that is sent now goes on if its local engine is replaced."""
        return self.is_on and survives_failure(body, delivered, self._style(None))

    def begin(self, part: int, failure: AttemptFailure) -> None:
        """Continue a part with its next attempt."""
        self._failures[part] = failure
        if failure.has_differed:
            self.ways.remove(ContinuationWay.REPLAY.value)
            self.abandoned_replays += 1
        self.ways.append(NO_WAY)  # unless there is a backend for the next attempt, and it has a way

    def failure_of(self, part: int) -> AttemptFailure | None:
        """Return the failure after which a part is continued; None if it is not."""
        return self._failures.get(part)

    async def plan(
        self, lease: BackendLease, part: int, body: Json, delivered: Delivered
    ) -> tuple[Continuation, Json] | None:
        """Return how the rest of an answer is requested from a backend, and the request; None if it cannot be."""
        is_same_model = lease.model == self.models[part]  # a route may name another model for the same requests
        failure, upstream = self._failures[part], lease.upstream
        continuation = self._plan(body, delivered, failure, upstream, allows_prefill=is_same_model)
        if continuation is not None and continuation.way is ContinuationWay.PREFILL:
            style = self._style(upstream)
            tokens = await self._count_tokens(lease, continuation.prefill, style)
            if tokens is not None:
                continuation = msgspec.structs.replace(
                    continuation,
                    delivered_tokens=max(tokens, continuation.delivered_tokens),
                    prompt_tokens=await _count_prompt(lease, body) if style is PrefillStyle.ENGINE else None,
                )
            planned = None if tokens is None else continued_body(body, continuation, style)
            if planned is not None:
                return self._record(lease, continuation), planned
            continuation = self._plan(body, delivered, failure, upstream, allows_prefill=False)
        return None if continuation is None else (self._record(lease, continuation), body)

    def _record(self, lease: BackendLease, continuation: Continuation) -> Continuation:
        self.ways[self.ways.index(NO_WAY)] = continuation.way.value
        fields = {"request_id": self._request_id, "way": continuation.way.value, "backend": lease.name}
        log.event(logging.WARNING, "continuing an answer that broke off", fields)
        return continuation

    def _style(self, upstream: Upstream | None) -> PrefillStyle | None:
        return prefill_style(upstream, is_builtin=self._is_builtin)

    def _plan(
        self,
        body: Json,
        delivered: Delivered,
        failure: AttemptFailure,
        upstream: Upstream | None,
        *,
        allows_prefill: bool = True,
    ) -> Continuation | None:
        setting = "auto" if upstream is None else upstream.settings.continues
        if setting == OFF:
            return None
        return plan_continuation(
            body,
            delivered,
            failure.error.to_failure(),
            style=self._style(upstream) if allows_prefill else None,
            honours_seed=upstream is None or setting == "replay",
            is_replay_short=self._times.gaps_s <= _SHORT_REPLAY_S,
            has_differed=failure.has_differed,
        )

    async def _count_tokens(self, lease: BackendLease, text: str, style: PrefillStyle | None) -> int | None:
        """Count the tokens of a delivered text; 0 if only its chunks can be counted, None if it must not be sent.

        The engine reads special tokens in a prompt, and the model may have written them as text.
        """
        if style is PrefillStyle.ENGINE:
            plain = await _tokenize(lease, {"content": text, "add_special": False, "parse_special": False})
            parsed = await _tokenize(lease, {"content": text, "add_special": False, "parse_special": True})
            return None if plain is None or parsed != plain else len(plain)
        if lease.upstream is not None and lease.upstream.kind == "vllm":
            tokens = await _tokenize(lease, {"prompt": text, "add_special_tokens": False})
            return 0 if tokens is None else len(tokens)
        return 0


async def _count_prompt(lease: BackendLease, body: Json) -> int | None:
    """Count the tokens of the first prompt, as the engine counts them in the usage."""
    if isinstance(prompt := body.get("prompt"), str):
        tokens = await _tokenize(lease, {"content": prompt, "add_special": True, "parse_special": True})
        return None if tokens is None else len(tokens)
    reply = await _fetch(lease, _input_tokens_request(body=body))
    return as_positive_int(reply.get("input_tokens")) or None


async def _tokenize(lease: BackendLease, body: Json) -> list[object] | None:
    tokens = (await _fetch(lease, _tokenize_request(body=body))).get("tokens")
    return tokens if isinstance(tokens, list) else None


async def _fetch(lease: BackendLease, request: JsonRequest) -> Json:
    """Return the reply; empty if there is none."""
    failure = await request.fetch(lease, 2)  # on a new connection, as all second attempts
    if failure is not None and failure.is_disconnect and await lease.prepare_retry(failure):
        failure = await request.fetch(lease, 2)  # the exit of the engine was noticed late
    return request.reply if failure is None else {}
