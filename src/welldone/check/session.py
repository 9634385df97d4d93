"""What a probe has in its hands: a server to ask, and a place to say what was heard.

Every reply is judged by the rules that speak about one reply, before the probe sees it. What takes more than that to
hear, the probe says with `hold`.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from welldone.check.applicability import applicable_rules
from welldone.check.probe_client import OVERLOAD_STATUSES, ProbeClient, ServerFacts
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.http.recording_client import ConnectError, RecordedResponse
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Severity
from welldone.rules.judge import excerpt, judge
from welldone.rules.root_causes import RootCauses

REFUSED_4XX_RULE = "err-refused-4xx"
KEEPALIVE_RULE = "live-keepalive-in-silence"

AbortPredicate = Callable[[bytes], bool]


class UnsupportedError(Exception):
    """The server does not do what the probe asks for. The message is what it says."""


class NotApplicableError(Exception):
    """The probe cannot say anything. The message says why."""


class ProbeViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was heard broken."""

    rule: str
    severity: Severity
    reply: ProbeReply
    frame: int | None
    byte: int | None
    observed: str
    expected: str
    cause: str | None = None
    """The rule whose breach in the same reply explains this one."""


class Session:
    """One probe's talk with the server."""

    def __init__(self, client: ProbeClient, facts: ServerFacts, probe: str, rule_ids: frozenset[str]) -> None:
        self.facts = facts
        self.dialect = client.settings.dialect
        self.timeouts = client.settings.timeouts
        self.jobs = client.settings.jobs
        self.replies: list[ProbeReply] = []
        self.judged: set[str] = set()
        """The rules that had a say."""
        self.violations: list[ProbeViolation] = []
        self.counts: dict[str, int] = {}
        """How often each rule was heard broken."""
        self.inapplicable: dict[str, str] = {}
        """Rules of the probe's own that had no say, and why."""
        self.is_incomplete = False
        """Whether a reply did not come, or was given up before it was whole."""
        self.is_timed_out = False
        """Whether that was for the time limit."""
        self._client = client
        self._probe = probe
        self._rule_ids = rule_ids

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key."""
        return self._client.address.key is not None

    # ---- asking

    async def generate(
        self,
        content: str | list[dict[str, Any]],
        /,
        *,
        stream: bool | None = True,
        max_tokens: int | None = 48,
        limit_field: str | None = None,
        is_exact: bool = False,
        headers: tuple[tuple[str, str | None], ...] = (),
        abort_when: AbortPredicate | None = None,
        **members: Any,  # noqa: ANN401 - JSON
    ) -> ProbeReply:
        """The reply to one user message, or to a whole talk. A member that is `...` is left out.

        `stream` None: the key is absent. `limit_name`: another than the server's own for `max_tokens`. `is_exact`: a
        model that thinks gets no more tokens for it.
        """
        common = self._common_fields(stream, max_tokens, is_exact=is_exact, name=limit_field)
        body = {**self.dialect.prompt_members(content), **common, **members}
        return await self.post(self.dialect.path, body, headers=headers, abort_when=abort_when)

    async def complete(
        self,
        prompt: str | list[Any],
        /,
        *,
        stream: bool | None = True,
        max_tokens: int | None = 16,
        abort_when: AbortPredicate | None = None,
        **members: Any,  # noqa: ANN401 - JSON
    ) -> ProbeReply:
        """The reply of the completions endpoint."""
        body = {
            "prompt": prompt,
            **self._common_fields(stream, max_tokens, is_exact=True, name="max_tokens"),
            **members,
        }
        return await self.post("/completions", body, abort_when=abort_when)

    def _common_fields(
        self, stream: bool | None, max_tokens: int | None, *, is_exact: bool, name: str | None = None
    ) -> dict[str, Any]:
        more = 0 if is_exact else self.facts.reasoning_allowance
        least = self.dialect.min_tokens
        return {
            "model": self.facts.model,
            **self.facts.members,
            **({} if stream is None else {"stream": stream}),
            **({} if max_tokens is None else {name or self.facts.limit_field: max(max_tokens + more, least)}),
            **self._client.settings.extra,
        }

    async def post(
        self,
        path: str,
        body: dict[str, Any] | bytes,
        *,
        headers: tuple[tuple[str, str | None], ...] = (),
        abort_when: AbortPredicate | None = None,
    ) -> ProbeReply:
        """The reply to a body: JSON without the members that are `...`, or bytes as they are."""
        if isinstance(body, dict):
            kept = {name: value for name, value in body.items() if value is not ...}
            body = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
        endpoint = "completions" if path == "/completions" else self.dialect.name
        asked = ProbeRequest(method="POST", path=path, body=body, headers=headers, endpoint=endpoint)
        return await self.send(asked, abort_when=abort_when)

    async def send(
        self, request: ProbeRequest, *, abort_when: AbortPredicate | None = None, is_judged: bool = True
    ) -> ProbeReply:
        """The reply to any request. `is_judged` is for those to the endpoints that the rules speak about.

        Raises:
            NotHeardError: there was no reply, or no end of it.
        """
        for recording in await self._send_recorded(request, abort_when):
            self.replies.append(ProbeReply(request, recording, len(self.replies) + 1, is_judged=is_judged))
            if is_judged:
                self._judge(self.replies[-1])
        reply = self.replies[-1]
        if reply.recording.is_abandoned:
            self.is_incomplete = True
            self.is_timed_out = self.is_timed_out or reply.recording.is_timed_out
            why = self._client.timeout_message() if reply.recording.is_timed_out else reply.recording.error
            raise NotApplicableError(why or "the reply was given up")
        if reply.status is None and not reply.recording.is_aborted:
            raise NotApplicableError(reply.recording.error or "there was no reply")
        return reply

    async def _send_recorded(self, request: ProbeRequest, abort_when: AbortPredicate | None) -> list[RecordedResponse]:
        try:
            return await self._client.send(request, self._probe, abort_when)
        except ConnectError as error:  # it was there a moment ago: no rule speaks about that, and it is no pass
            self.is_incomplete = True
            raise NotApplicableError(str(error)) from None

    def require_ok(self, reply: ProbeReply) -> ProbeReply:
        """The reply, where the server took the request.

        Raises:
            NotOfferedError: it did not.
            NotHeardError: it failed, or was too busy.
        """
        if reply.is_ok:
            return reply
        if reply.status is None or reply.status >= 500 or reply.status == 429:
            raise NotApplicableError(reply.error_summary)
        raise UnsupportedError(reply.error_summary)

    # ---- judging

    def check_rule(
        self,
        rule: str,
        reply: ProbeReply,
        passed: bool,
        *,
        observed: object = "",
        expected: str = "",
        frame: int | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Say whether a rule is kept; if not: what was heard, and what was wanted instead."""
        if rule not in self._rule_ids:
            return
        self.judged.add(rule)
        if passed:
            return
        self.counts[rule] = self.counts.get(rule, 0) + 1
        byte = None if frame is None else reply.view.frames[frame - 1].byte
        self.violations.append(
            ProbeViolation(
                rule=rule,
                severity=severity or RULES_BY_ID[rule].severity,
                reply=reply,
                frame=frame,
                byte=byte,
                observed=excerpt(observed),
                expected=excerpt(expected),
                cause=self._cause(rule, reply, frame),
            )
        )

    def _cause(self, rule: str, reply: ProbeReply, frame: int | None) -> str | None:
        """What was found in the same reply and explains this."""
        return RootCauses([found for found in self.violations if found.reply is reply], 0).cause_of(rule, frame)

    def not_applicable(self, rule: str, reason: str) -> None:
        """Say that there was no occasion to judge a rule of the probe's own."""
        self.inapplicable[rule] = reason

    def _judge(self, reply: ProbeReply) -> None:
        self._judge_status_and_silence(reply)
        if not reply.can_be_judged:
            return
        self.judged |= applicable_rules(reply.view) & self._rule_ids
        judgement = judge(reply.trace, self._rule_ids)
        for rule, count in judgement.counts.items():
            self.counts[rule] = self.counts.get(rule, 0) + count
        for finding in judgement.findings:
            self.judged.add(finding.rule)
            self.violations.append(
                ProbeViolation(
                    rule=finding.rule,
                    severity=Severity(finding.severity),
                    reply=reply,
                    frame=finding.frame,
                    byte=finding.byte,
                    observed=finding.observed,
                    expected=finding.expected,
                    cause=finding.cause,
                )
            )

    def _judge_status_and_silence(self, reply: ProbeReply) -> None:
        """That there is one, of the right class, and no long silence in it."""
        wanted = "a reply, or a 4xx that says why there is none"
        if reply.status is None:
            if not reply.is_partial:
                heard = reply.recording.error or "no reply"
                self.check_rule(
                    REFUSED_4XX_RULE, reply, passed=False, observed=heard, expected=wanted, severity=Severity.BREAKS
                )
        elif reply.status >= 400 and reply.status not in OVERLOAD_STATUSES:
            self.check_rule(REFUSED_4XX_RULE, reply, reply.status < 500, observed=reply.error_summary, expected=wanted)
        patience_s = self.timeouts.silence_s
        if reply.status is not None and reply.is_stream and reply.recording.ended_s >= patience_s:
            heard = f"no byte for {reply.longest_silence_s:.1f} s"
            wanted = f"a sign of life at least every {patience_s:g} s"
            # A sign that is due at 15 s may come a little late.
            self.check_rule(
                KEEPALIVE_RULE, reply, reply.longest_silence_s < patience_s * 1.2, observed=heard, expected=wanted
            )
