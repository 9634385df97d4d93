"""What a probe has in its hands: a server to ask, and a place to say what was heard.

Every reply is judged by the rules that speak about one reply, before the probe sees it. What takes more than that to
hear, the probe says with `hold`.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from welldone.check.desk import BUSY, Desk, Facts
from welldone.check.occasions import had_a_say
from welldone.check.reply import Asked, Reply
from welldone.net.ear import ListenError, Recording
from welldone.rules.causes import Causes
from welldone.rules.judge import judge, show
from welldone.wire.faults import Severity
from welldone.wire.faults.catalogue import BY_ID

REFUSED_4XX = "err-refused-4xx"
KEEPALIVE = "live-keepalive-in-silence"

Leave = Callable[[bytes], bool]


class NotOfferedError(Exception):
    """The server does not do what the probe asks for. The message is what it says."""


class NotHeardError(Exception):
    """The probe cannot say anything. The message says why."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was heard broken."""

    rule: str
    severity: Severity
    reply: Reply
    frame: int | None
    byte: int | None
    heard: str
    wanted: str
    cause: str | None = None
    """The rule whose breach in the same reply explains this one."""


class Session:
    """One probe's talk with the server."""

    def __init__(self, desk: Desk, facts: Facts, probe: str, wanted: frozenset[str]) -> None:
        self.facts = facts
        self.dialect = desk.settings.dialect
        self.patience = desk.settings.patience
        self.side_by_side = desk.settings.side_by_side
        self.replies: list[Reply] = []
        self.judged: set[str] = set()
        """The rules that had a say."""
        self.found: list[Found] = []
        self.counts: dict[str, int] = {}
        """How often each rule was heard broken."""
        self.unheard: dict[str, str] = {}
        """Rules of the probe's own that had no say, and why."""
        self.is_given_up = False
        """Whether a reply did not come, or was given up before it was whole."""
        self.is_timed_out = False
        """Whether that was for the time limit."""
        self._desk = desk
        self._probe = probe
        self._wanted = wanted

    @property
    def has_key(self) -> bool:
        """Whether requests carry a key."""
        return self._desk.address.key is not None

    # ---- asking

    async def ask(
        self,
        content: str | list[dict[str, Any]],
        /,
        *,
        stream: bool | None = True,
        max_tokens: int | None = 48,
        limit_name: str | None = None,
        is_exact: bool = False,
        headers: tuple[tuple[str, str | None], ...] = (),
        leave: Leave | None = None,
        **members: Any,  # noqa: ANN401 - JSON
    ) -> Reply:
        """The reply to one user message, or to a whole talk. A member that is `...` is left out.

        `stream` None: the key is absent. `limit_name`: another than the server's own for `max_tokens`. `is_exact`: a
        model that thinks gets no more tokens for it.
        """
        common = self._common(stream, max_tokens, is_exact=is_exact, name=limit_name)
        body = {**self.dialect.said(content), **common, **members}
        return await self.post(self.dialect.path, body, headers=headers, leave=leave)

    async def complete(
        self,
        prompt: str | list[Any],
        /,
        *,
        stream: bool | None = True,
        max_tokens: int | None = 16,
        leave: Leave | None = None,
        **members: Any,  # noqa: ANN401 - JSON
    ) -> Reply:
        """The reply of the completions endpoint."""
        body = {"prompt": prompt, **self._common(stream, max_tokens, is_exact=True, name="max_tokens"), **members}
        return await self.post("/completions", body, leave=leave)

    def _common(
        self, stream: bool | None, max_tokens: int | None, *, is_exact: bool, name: str | None = None
    ) -> dict[str, Any]:
        more = 0 if is_exact else self.facts.allowance
        least = self.dialect.least_tokens
        return {
            "model": self.facts.model,
            **self.facts.members,
            **({} if stream is None else {"stream": stream}),
            **({} if max_tokens is None else {name or self.facts.limit_name: max(max_tokens + more, least)}),
            **self._desk.settings.extra,
        }

    async def post(
        self,
        path: str,
        body: dict[str, Any] | bytes,
        *,
        headers: tuple[tuple[str, str | None], ...] = (),
        leave: Leave | None = None,
    ) -> Reply:
        """The reply to a body: JSON without the members that are `...`, or bytes as they are."""
        if isinstance(body, dict):
            kept = {name: value for name, value in body.items() if value is not ...}
            body = json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()
        endpoint = "completions" if path == "/completions" else self.dialect.name
        asked = Asked(method="POST", path=path, body=body, headers=headers, endpoint=endpoint)
        return await self.send(asked, leave=leave)

    async def send(self, asked: Asked, *, leave: Leave | None = None, is_judged: bool = True) -> Reply:
        """The reply to any request. `is_judged` is for those to the endpoints that the rules speak about.

        Raises:
            NotHeardError: there was no reply, or no end of it.
        """
        for recording in await self._ask(asked, leave):
            self.replies.append(Reply(asked, recording, len(self.replies) + 1, is_judged=is_judged))
            if is_judged:
                self._judge(self.replies[-1])
        reply = self.replies[-1]
        if reply.recording.is_given_up:
            self.is_given_up = True
            self.is_timed_out = self.is_timed_out or reply.recording.is_timed_out
            why = self._desk.timed_out() if reply.recording.is_timed_out else reply.recording.error
            raise NotHeardError(why or "the reply was given up")
        if reply.status is None and not reply.recording.is_left:
            raise NotHeardError(reply.recording.error or "there was no reply")
        return reply

    async def _ask(self, asked: Asked, leave: Leave | None) -> list[Recording]:
        try:
            return await self._desk.ask(asked, self._probe, leave)
        except ListenError as error:  # it was there a moment ago: no rule speaks about that, and it is no pass
            self.is_given_up = True
            raise NotHeardError(str(error)) from None

    def answered(self, reply: Reply) -> Reply:
        """The reply, where the server took the request.

        Raises:
            NotOfferedError: it did not.
            NotHeardError: it failed, or was too busy.
        """
        if reply.is_ok:
            return reply
        if reply.status is None or reply.status >= 500 or reply.status == 429:
            raise NotHeardError(reply.complaint)
        raise NotOfferedError(reply.complaint)

    # ---- judging

    def hold(
        self,
        rule: str,
        reply: Reply,
        is_kept: bool,
        *,
        heard: object = "",
        wanted: str = "",
        frame: int | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Say whether a rule is kept; if not: what was heard, and what was wanted instead."""
        if rule not in self._wanted:
            return
        self.judged.add(rule)
        if is_kept:
            return
        self.counts[rule] = self.counts.get(rule, 0) + 1
        byte = None if frame is None else reply.heard.frames[frame - 1].byte
        self.found.append(
            Found(
                rule=rule,
                severity=severity or BY_ID[rule].severity,
                reply=reply,
                frame=frame,
                byte=byte,
                heard=show(heard),
                wanted=show(wanted),
                cause=self._cause(rule, reply, frame),
            )
        )

    def _cause(self, rule: str, reply: Reply, frame: int | None) -> str | None:
        """What was found in the same reply and explains this."""
        return Causes([found for found in self.found if found.reply is reply], 0).of(rule, frame)

    def not_heard(self, rule: str, why: str) -> None:
        """Say that there was no occasion to judge a rule of the probe's own."""
        self.unheard[rule] = why

    def _judge(self, reply: Reply) -> None:
        self._judge_the_answer(reply)
        if not reply.can_be_judged:
            return
        self.judged |= had_a_say(reply.heard) & self._wanted
        judgement = judge(reply.trace, self._wanted)
        for rule, count in judgement.counts.items():
            self.counts[rule] = self.counts.get(rule, 0) + count
        for finding in judgement.findings:
            self.judged.add(finding.rule)
            self.found.append(
                Found(
                    rule=finding.rule,
                    severity=Severity(finding.severity),
                    reply=reply,
                    frame=finding.frame,
                    byte=finding.byte,
                    heard=finding.heard,
                    wanted=finding.wanted,
                    cause=finding.cause,
                )
            )

    def _judge_the_answer(self, reply: Reply) -> None:
        """That there is one, of the right class, and no long silence in it."""
        wanted = "a reply, or a 4xx that says why there is none"
        if reply.status is None:
            if not reply.is_unended:
                heard = reply.recording.error or "no reply"
                self.hold(REFUSED_4XX, reply, is_kept=False, heard=heard, wanted=wanted, severity=Severity.BREAKS)
        elif reply.status >= 400 and reply.status not in BUSY:
            self.hold(REFUSED_4XX, reply, reply.status < 500, heard=reply.complaint, wanted=wanted)
        patience_s = self.patience.silence_s
        if reply.status is not None and reply.is_stream and reply.recording.ended_s >= patience_s:
            heard = f"no byte for {reply.silence_s:.1f} s"
            wanted = f"a sign of life at least every {patience_s:g} s"
            # A sign that is due at 15 s may come a little late.
            self.hold(KEEPALIVE, reply, reply.silence_s < patience_s * 1.2, heard=heard, wanted=wanted)
