"""The retry loop of all requests to backends: generation, passthrough endpoints, token counts and embeddings.

`recovery.py` decides what follows a failed attempt; this loop does it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.core.json_budget import decode_in_steps
from welldone.dialects.registry import DIALECTS
from welldone.engines.errors import EngineError
from welldone.gateway import error_mapping
from welldone.gateway.backends import Backend, BackendLease, root_address
from welldone.gateway.error_mapping import CLIENT_DISCONNECTED, AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.gateway.upstream import dialect_headers
from welldone.http.client import BufferingReceiver, Exchange
from welldone.http.connect import HttpClientError
from welldone.http.turns import run_cooperatively
from welldone.server.generation.recovery import AttemptOutput, Continue, GiveUp, Recovery, decide
from welldone.server.observe.tracing import RequestTrace

INPUT_TOKENS_PATH = "/chat/completions/input_tokens"
"""Where llama.cpp and welldone count the prompt tokens of a chat."""


class RetriableRequest(Protocol):
    """A request that may need several attempts, for each of its parts."""

    async def run_attempt(self, lease: BackendLease, part: int, number: int) -> AttemptFailure | None:
        """Make an attempt (the first has number 1), report its result to the lease and return its failure.

        From the second on, attempts use a new connection instead of a pooled one.
        """

    def output(self, part: int, failure: AttemptFailure) -> AttemptOutput:
        """Return what is possible with the output of a failed attempt."""

    def recover(self, part: int, failure: AttemptFailure, recovery: Recovery) -> None:
        """Discard the output of a failed attempt, or prepare its continuation."""


class RetryLoop:
    """The attempts at one request. `parts` are requested separately, such as the choices of a chat."""

    def __init__(
        self, backend: Backend, *, parts: int = 1, sticky: str | None = None, trace: RequestTrace | None = None
    ) -> None:
        self.upstream: str = ""
        """The upstream of the last attempt."""
        self.repeated: int = 0
        """Attempts that followed a failed one."""
        self._failed: list[str] = []  # upstream and reason of each failed attempt: `lab:timeout`
        self._backend = backend
        self._sticky = sticky
        self._trace = trace
        self._pending = [(part, 1) for part in reversed(range(parts))]  # part and number of the attempt, next last

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of the request log; none for local models."""
        return {"upstream": self.upstream, "failed": tuple(self._failed)} if self.upstream else {}

    def stop(self) -> None:
        """Start no further attempts."""
        self._pending.clear()

    async def run(self, request: RetriableRequest, *, is_first: bool = True) -> None:
        """Run the pending parts one after the other. Several calls of it run parts in parallel.

        Raises:
            ApiError: a part has failed for good, or no slot was available (only if `is_first`: one slot is enough).
        """
        avoid: tuple[str, ...] = ()
        failure: AttemptFailure | None = None  # of the last attempt
        try:
            while self._pending:
                lease = await self._backend.lease(avoid, self._sticky)
                try:
                    while self._pending:
                        part, number = self._pending.pop()
                        if lease.upstream is not None:
                            self.upstream = lease.name
                        failure = None
                        failure = await self._run_attempt(request, lease, part, number)
                        if failure is None:
                            continue
                        self._failed.append(f"{lease.name}:{failure.outcome}")
                        recovery = decide(
                            failure,
                            request.output(part, failure),
                            has_attempts=number < self._backend.max_attempts,
                            is_local=lease.upstream is None,
                            has_alternative=lease.is_gone or self._backend.has_alternative({lease.name}),
                        )
                        request.recover(part, failure, recovery)
                        if isinstance(recovery, GiveUp):
                            raise failure.error
                        if self._trace is not None and not isinstance(recovery, Continue):
                            self._trace.record_retry(lease, number, failure.outcome)
                        self._pending.append((part, number + (not failure.has_differed)))
                        self.repeated += 1
                        if self._backend.has_alternative({lease.name}) or not await lease.prepare_retry(failure):
                            avoid += (lease.name,)
                            if not self._backend.has_alternative(avoid):
                                avoid = (lease.name,)  # all have failed: begin again, but not with the last one
                            break
                finally:
                    lease.release()
        except ApiError as error:
            if failure is not None:  # more useful than that no other slot was available
                raise failure.error from None
            if is_first or error.status not in (429, 503):
                raise
        except EngineError as error:
            raise error_mapping.engine_unavailable(error) from None

    async def _run_attempt(
        self, request: RetriableRequest, lease: BackendLease, part: int, number: int
    ) -> AttemptFailure | None:
        """Make an attempt, and record it in the trace of the request."""
        if self._trace is None:
            return await request.run_attempt(lease, part, number)
        lease.trace = self._trace.begin_attempt(lease, number)
        outcome: str | None = CLIENT_DISCONNECTED.outcome  # unless there is a result: the task is cancelled
        try:
            failure = await request.run_attempt(lease, part, number)
            outcome = None if failure is None else failure.outcome
            return failure
        finally:
            lease.trace.end(outcome)


class JsonRequest(msgspec.Struct, kw_only=True):
    """A request whose reply is a JSON object that is read as a whole."""

    path: str = ""
    body: Json = {}
    """Without the name of the model."""
    endpoint: Endpoint = Endpoint.CHAT
    """Its dialect is that of the upstream, which decides how it gets its key."""
    headers: Mapping[str, str] = {}
    """The client's headers that are forwarded."""
    is_root: bool = False
    """The path is at the server's root, not below `/v1`."""
    param: str
    """The field to blame for a prompt that is too long."""
    required_integer: str = ""
    """A field that the reply must have."""
    values_limit: int
    limit_bytes: int
    status: int = 0
    """Of the last attempt's reply."""
    reply: Json = {}
    """The reply, after a successful attempt."""

    async def run_attempt(self, lease: BackendLease, part: int, number: int) -> AttemptFailure | None:
        """Send the request and decode the reply."""
        failure = await self.fetch(lease, number)
        lease.report(failure)
        return failure

    def output(self, part: int, failure: AttemptFailure) -> AttemptOutput:
        """The client gets only complete replies."""
        return AttemptOutput(can_discard=True)

    def recover(self, part: int, failure: AttemptFailure, recovery: Recovery) -> None:
        """Do nothing: there is no output."""

    async def fetch(self, lease: BackendLease, number: int) -> AttemptFailure | None:
        """Like `run_attempt`, without a report to the lease."""
        upstream, timeout_s = lease.upstream, lease.first_byte_s
        receiver = BufferingReceiver(self.limit_bytes)
        exchange: Exchange | None = None
        path, body = DIALECTS[self.endpoint].make_target(self.path, self.body, lease.model)
        try:
            async with asyncio.timeout(timeout_s):
                exchange = await lease.send(
                    root_address(lease.address) if self.is_root else lease.address,
                    "POST",
                    path,
                    receiver,
                    body=msgspec.json.encode(body),
                    accept="application/json",
                    headers=dialect_headers(lease.address, self.endpoint, self.headers),
                    own_headers=lease.trace_headers,
                    is_fresh=number > 1,
                )
                reply = await receiver.response
        except TimeoutError:
            return error_mapping.timeout_failure(timeout_s)
        except HttpClientError as error:
            if exchange is None:
                return error_mapping.connection_failure(error, upstream)
            if receiver.is_too_large:
                return error_mapping.reply_too_large()
            return error_mapping.disconnect_failure(error, upstream, has_head=receiver.status > 0)
        finally:
            if exchange is not None:
                exchange.close()
        self.status = reply.status
        if reply.status != 200:
            return error_mapping.status_failure(reply.status, reply.headers, reply.body, self.param, upstream)
        try:
            steps = decode_in_steps(reply.body, elements=self.values_limit, limit_bytes=self.limit_bytes)
            value = await run_cooperatively(steps)
        except (msgspec.DecodeError, RecursionError):
            value = None
        required = self.required_integer
        if not isinstance(value, dict) or (required and type(value.get(required)) is not int):
            failure = error_mapping.unrecognized_reply()
            return failure if upstream else msgspec.structs.replace(failure, error=error_mapping.invalid_engine_reply())
        self.reply = value
        return None
