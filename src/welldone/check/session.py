"""Probes, and the session of one: it sends the requests of the probe and collects its violations.

Every reply is judged by all rules about single replies before the probe reads it. Rules that need more than one reply,
or knowledge of the request, are judged by the probe with `check_rule`.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from welldone.check.applicability import REFUSAL_RULES, applicable_rules
from welldone.check.probe_client import AbortPredicate, ProbeClient, ServerFacts
from welldone.check.reply import OVERLOAD_STATUSES, ExpectedReply, ProbeReply, ProbeRequest, RequestHeaders
from welldone.check.report import CLIENT_LIBRARIES, affected_clients, group_by
from welldone.check.settings import CheckDialect, Timeouts
from welldone.core import sse
from welldone.core.catalog import ANY, RULES
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RecordedResponse, RecordingSocket, RefusedSocketError, SocketRecording
from welldone.rules.judge import LintFinding, RootCauses, judge, make_finding
from welldone.rules.rule_check import Violation
from welldone.rules.view.choices import as_object, as_text, is_int
from welldone.rules.view.responses import RESPONSE_END_EVENTS, RESPONSES_ERROR_EVENT

REFUSED_4XX_RULE = "err-refused-4xx"
KEEPALIVE_RULE = "live-keepalive-in-silence"
NOT_REPRODUCIBLE = "the server gives different answers at temperature 0"
"""Reason of a probe that compares answers."""

ENDED_IN_ERROR = "the answer ended in an error"
COMPLETIONS_PATH = "/completions"
_HTTP_FAMILIES = ("http", "sse", "end")
"""Families of rules that do not apply to messages of a WebSocket."""


class UnsupportedError(Exception):
    """The server lacks the feature that the probe needs. The message is the server's."""


class NotApplicableError(Exception):
    """The probe cannot judge its rules. The message is the reason."""


class ProbeViolation(LintFinding, frozen=True, kw_only=True):
    """A violation of a rule in one reply."""

    reply: ProbeReply


class Session:
    """State of one probe: its replies, judged rules and violations."""

    def __init__(self, client: ProbeClient, facts: ServerFacts, probe: str, rule_ids: frozenset[str]) -> None:
        self.facts = facts
        self.dialect: CheckDialect = client.settings.dialect
        self.timeouts: Timeouts = client.settings.timeouts
        self.jobs: int = client.settings.jobs
        self.replies: list[ProbeReply] = []
        self.judged: dict[str, list[ProbeReply]] = {}
        """The replies on which each rule was judged, by its id."""
        self.violations: list[ProbeViolation] = []
        self.counts: Counter[str] = Counter()
        """Number of violations by rule."""
        self.inapplicable: dict[str, str] = {}
        """Rules of the probe that could not be judged, with the reason."""
        self.is_incomplete: bool = False
        """Whether a reply is missing or incomplete."""
        self.is_timed_out: bool = False
        """Whether a reply timed out."""
        self._client = client
        self._probe = probe
        self._rule_ids = rule_ids

    @property
    def answers(self) -> list[ProbeReply]:
        """Replies to the requests that a server must answer, without refusals."""
        answerable = [reply for reply in self.replies if reply.request.expects_answer]
        return [reply for reply in answerable if reply.is_ok or reply.failure]

    @property
    def failures(self) -> list[str]:
        """The errors in which answers ended."""
        redact = self._client.settings.secrets.redact
        return [redact(reply.failure) for reply in self.answers if reply.failure]

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key."""
        return self._client.address.key is not None

    # ---- requests

    async def generate(
        self,
        content: str | list[Any],
        /,
        *,
        stream: bool | None = True,
        max_tokens: int = 48,
        limit_field: str | None = None,
        is_exact: bool = False,
        is_completion: bool = False,
        headers: RequestHeaders = (),
        abort_when: AbortPredicate | None = None,
        expected: ExpectedReply = ExpectedReply.ANSWER,
        **members: Any,  # noqa: ANN401 - JSON
    ) -> ProbeReply:
        """Send one user message or a whole conversation. A field whose value is `...` is omitted.

        `stream=None` omits the field. `limit_field` overrides the name of the token limit. With `is_exact` the limit
        has no allowance for reasoning. With `is_completion`, `content` is the prompt of a request to /completions.
        """
        allowance = 0 if is_exact else self.facts.reasoning_allowance
        body = {
            **({"prompt": content} if is_completion else self.dialect.prompt_members(content)),
            "model": self.facts.model,
            **self.facts.members,
            "stream": ... if stream is None else stream,
            limit_field or self.facts.limit_field: max(max_tokens + allowance, self.dialect.min_tokens),
            **self._client.settings.extra,
            **members,
        }
        path, body = (COMPLETIONS_PATH, body) if is_completion else self.dialect.write_request(body)
        return await self.post(path, body, headers=headers, abort_when=abort_when, expected=expected)

    async def answer(self, content: str | list[Any], /, **options: Any) -> ProbeReply:  # noqa: ANN401 - of `generate`
        """The reply to `generate`, which must be 2xx; raises like `require_ok`."""
        return self.require_ok(await self.generate(content, **options))

    async def complete(self, prompt: str | list[Any], /, **options: Any) -> ProbeReply:  # noqa: ANN401 - of `generate`
        """Send a request to /completions."""
        fields = {"max_tokens": 16, "limit_field": "max_tokens", **options}
        return await self.generate(prompt, is_completion=True, is_exact=True, **fields)

    async def post(
        self,
        path: str,
        body: dict[str, Any] | bytes,
        *,
        headers: RequestHeaders = (),
        abort_when: AbortPredicate | None = None,
        expected: ExpectedReply = ExpectedReply.ANY,
    ) -> ProbeReply:
        """Send a JSON body without the fields whose value is `...`, or raw bytes."""
        if isinstance(body, dict):
            fields = {name: value for name, value in body.items() if value is not ...}
            body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        name = "completions" if path == COMPLETIONS_PATH else self.dialect.name
        request = ProbeRequest(method="POST", path=path, body=body, headers=headers, endpoint=name, expected=expected)
        return await self.send(request, abort_when=abort_when)

    async def list_models(self) -> ProbeReply:
        """The model list, which must be 2xx; raises like `require_ok`."""
        return self.require_ok(await self.send(ProbeRequest(method="GET", path="/models"), is_judged=False))

    async def send(
        self, request: ProbeRequest, *, abort_when: AbortPredicate | None = None, is_judged: bool = True
    ) -> ProbeReply:
        """Send any request. `is_judged=False` is for endpoints that have no rules.

        Raises:
            NotApplicableError: the reply is missing or incomplete.
        """
        try:
            recordings = await self._client.send(request, self._probe, abort_when)
        except HttpClientError as error:  # no rule is about lost connections, but the run must not pass
            self.is_incomplete = True
            raise NotApplicableError(str(error)) from None
        for recording in recordings:
            self.add_reply(request, recording, is_judged=is_judged)
        reply = self.replies[-1]
        if reply.recording.is_abandoned:
            self.is_incomplete = True
            self.is_timed_out = self.is_timed_out or reply.recording.is_timed_out
            reason = self._client.timeout_message() if reply.recording.is_timed_out else reply.recording.error
            raise NotApplicableError(reason or "the reply is incomplete")
        if reply.status is None and not reply.recording.is_aborted:
            raise NotApplicableError(reply.recording.error or "no reply")
        return reply

    @asynccontextmanager
    async def open_socket(self) -> AsyncIterator["ProbeSocket"]:
        """Open a WebSocket at the path of the dialect.

        Raises:
            UnsupportedError: the server does not offer it.
            NotApplicableError: the server failed, or is overloaded.
        """
        request = ProbeRequest(method="GET", path=self.dialect.path, endpoint=self.dialect.name, is_socket=True)
        try:
            async with self._client.open_socket(request.path, self._probe) as socket:
                yield ProbeSocket(self, socket)
        except RefusedSocketError as error:
            self.require_ok(self.add_reply(request, error.response, is_judged=False))
            raise UnsupportedError(f"no WebSocket: {error}") from None
        except HttpClientError as error:
            raise NotApplicableError(str(error)) from None

    def add_reply(self, request: ProbeRequest, recording: RecordedResponse, *, is_judged: bool) -> ProbeReply:
        """Add a reply, and judge it."""
        reply = ProbeReply(request, recording, len(self.replies) + 1, is_judged=is_judged)
        self.replies.append(reply)
        if is_judged:
            self._judge(reply)
        return reply

    def require_ok(self, reply: ProbeReply) -> ProbeReply:
        """Return the reply if its status is 2xx and it is no error.

        Raises:
            UnsupportedError: the server refused the request.
            NotApplicableError: the server failed or is overloaded.
        """
        if not self.require_served(reply).is_ok:
            raise UnsupportedError(reply.error_summary)
        return reply

    def require_served(self, reply: ProbeReply) -> ProbeReply:
        """Return the reply if it is an answer or a refusal.

        Raises:
            NotApplicableError: the server failed or is overloaded.
        """
        if reply.failure:
            raise NotApplicableError(f"{ENDED_IN_ERROR}: {reply.failure}")
        if reply.status in OVERLOAD_STATUSES:
            self.is_incomplete = True
        if reply.status is None or reply.status == 429 or (reply.status >= 500 and reply.status != 501):
            raise NotApplicableError(reply.error_summary)
        return reply

    # ---- rules

    def check_rule(
        self,
        rule: str,
        reply: ProbeReply,
        passed: bool,
        observed: object = "",
        expected: str = "",
        *,
        frame: int | None = None,
        form: str = ANY,
    ) -> None:
        """Judge a rule of the probe; if it did not pass, record a violation."""
        if rule not in self._rule_ids:
            return
        self.judged.setdefault(rule, []).append(reply)
        if passed:
            return
        violation = Violation(frame, observed, expected, form)
        cause = RootCauses([earlier for earlier in self.violations if earlier.reply is reply], 0).cause_of(rule, frame)
        self._add(reply, msgspec.structs.replace(make_finding(reply.view, rule, violation), cause=cause), 1)

    def not_applicable(self, rule: str, reason: str) -> None:
        """Record why a rule of the probe could not be judged."""
        self.inapplicable[rule] = self._client.settings.secrets.redact(reason)

    def _judge(self, reply: ProbeReply) -> None:
        self._judge_status_and_silence(reply)
        if not reply.can_be_judged:
            return
        rule_ids = self._rule_ids
        if reply.request.is_socket:
            rule_ids = frozenset(rule for rule in rule_ids if RULES[rule].family not in _HTTP_FAMILIES)
        if reply.request.expected is ExpectedReply.REFUSAL and reply.is_ok:
            rule_ids &= REFUSAL_RULES
        report = judge(reply.trace, rule_ids)
        # An error in place of an answer keeps no rule about answers.
        applicable = applicable_rules(reply.view) & (rule_ids & REFUSAL_RULES if reply.failure else rule_ids)
        for rule in applicable | report.counts.keys():
            self.judged.setdefault(rule, []).append(reply)
        for rule, findings in group_by(report.findings, lambda finding: finding.rule).items():
            for number, finding in enumerate(findings):
                self._add(reply, finding, 1 if number else report.counts[rule] - len(findings) + 1)

    def _add(self, reply: ProbeReply, finding: LintFinding, count: int) -> None:
        """Record a violation, unless the profile's client accepts its form."""
        profile = self._client.settings.profile
        if profile is None or CLIENT_LIBRARIES.get(profile, profile) in affected_clients(finding.affects):
            self.counts[finding.rule] += count
            self.violations.append(ProbeViolation(**msgspec.structs.asdict(finding), reply=reply))

    def _judge_status_and_silence(self, reply: ProbeReply) -> None:
        expected = "a reply, or a 4xx with the reason"
        if reply.status is None:
            if not reply.is_partial and not reply.failure:
                observed = reply.recording.error or "no reply"
                self.check_rule(REFUSED_4XX_RULE, reply, False, observed, expected, form="no reply")
        elif reply.status >= 400 and reply.status not in OVERLOAD_STATUSES and not reply.failure:
            self.check_rule(REFUSED_4XX_RULE, reply, reply.status < 500, reply.error_summary, expected)
        limit_s = self.timeouts.silence_s
        if reply.status is not None and reply.is_stream and reply.recording.ended_s >= limit_s:
            silence_s = reply.longest_silence_s
            expected = f"data or a keep-alive at least every {limit_s:g} s"
            is_short = silence_s < limit_s * 1.2  # a keep-alive due at 15 s may arrive a little later
            self.check_rule(KEEPALIVE_RULE, reply, is_short, f"no byte for {silence_s:.1f} s", expected)


# ---- a WebSocket, each of whose messages is an event of a stream


class ProbeSocket:
    """A WebSocket whose messages are judged like the events of a stream."""

    def __init__(self, session: Session, socket: RecordingSocket) -> None:
        self.is_key_accepted: bool = socket.is_key_accepted
        self._session = session
        self._socket = socket

    async def exchange(self, event: dict[str, Any]) -> tuple[ProbeReply, SocketRecording]:
        """Send an event; returns the reply, and the messages that it consists of.

        Raises:
            NotApplicableError: the reply did not end in time.
        """
        body = msgspec.json.encode(event)
        recording = await self._socket.exchange(body, is_last_message)
        path, name = self._session.dialect.path, self._session.dialect.name
        request = ProbeRequest(method="GET", path=path, body=body, endpoint=name, is_socket=True)
        has_events = bool(recording.messages) and all(is_event(data) for _, _, data in recording.messages)
        reply = self._session.add_reply(request, as_response(recording), is_judged=has_events)
        if recording.is_timed_out:
            self._session.is_incomplete = self._session.is_timed_out = True
            raise NotApplicableError(str(recording.error))
        return reply, recording


def event_of(data: bytes) -> dict[str, Any]:
    """The event in a message; empty if it is not a JSON object."""
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def is_event(data: bytes) -> bool:
    """Return whether a message has the type of an event."""
    return bool(as_text(event_of(data).get("type")))


def is_last_message(data: bytes) -> bool:
    """Return whether a message ends its response: a last event, an error, or a message that is no event."""
    return not is_event(data) or event_of(data)["type"] in (*RESPONSE_END_EVENTS, RESPONSES_ERROR_EVENT)


def as_response(recording: SocketRecording) -> RecordedResponse:
    """The events as a stream; an error event that comes first as the HTTP response that it stands for."""
    first = event_of(recording.messages[0][2]) if recording.messages else {}
    error_status = first.get("status") if first.get("type") == RESPONSES_ERROR_EVENT else None
    status: int | None = 200 if recording.messages else None
    headers: tuple[tuple[str, str], ...] = sse.HEADERS
    body, arrivals = bytearray(), []
    for seconds, _, data in recording.messages:
        line = b" ".join(data.splitlines())  # JSON has line breaks only between its tokens
        event_type = as_text(event_of(data).get("type"))
        body += sse.named_frame(event_type, line) if event_type.isprintable() and event_type else sse.data_frame(line)
        arrivals.append((seconds, len(body)))
    if is_int(error_status):
        status, headers = error_status, (("Content-Type", "application/json"),)
        body = bytearray(msgspec.json.encode({"error": first.get("error")}))
    return RecordedResponse(
        status=status,
        headers=headers,
        body=bytes(body),
        pieces=None,
        is_complete=recording.error is None,
        head_s=None,
        arrivals=tuple(arrivals),
        ended_s=recording.ended_s,
        error=recording.error,
        is_abandoned=recording.is_timed_out,
        is_timed_out=recording.is_timed_out,
    )


# ---- probes


class Probe(msgspec.Struct, frozen=True):
    """A few requests that trigger one behaviour of a server."""

    name: str
    """Lower case, with hyphens. The part before the first hyphen is its group."""
    description: str
    """What it requests, in a line."""
    run: Callable[[Session], Awaitable[object]]
    rules: tuple[str, ...] = ()
    """The rules that the probe judges itself. Every reply is also judged by all rules about single replies."""
    is_exclusive: bool = False
    """Whether no other probe may run at the same time, because it measures times or load."""


def stream_and_whole(
    name: str,
    description: str,
    run: Callable[..., Awaitable[None]],
    rules: tuple[str, ...] = (),
    *,
    is_exclusive: bool = False,
) -> tuple[Probe, Probe]:
    """A probe of a streamed answer, and the same probe (NAME-whole) of one that is not streamed."""
    return (
        Probe(name, f"{description}, streamed", partial(run, stream=True), rules, is_exclusive),
        Probe(f"{name}-whole", f"{description}, not streamed", partial(run, stream=False), rules, is_exclusive),
    )
