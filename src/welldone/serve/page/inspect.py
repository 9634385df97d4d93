"""What the stream inspector asks for: tapes of answers, the verdict on a captured stream, the page of a rule."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

import msgspec

from welldone.net.inbound import Reply
from welldone.rules.page import page
from welldone.serve.app import Ask, json_reply
from welldone.serve.errors import ApiError, invalid
from welldone.serve.page import linting
from welldone.serve.page.lint_child import Job, judge_in_child, judged
from welldone.serve.page.tapes import Tapes
from welldone.serve.siblings import Question, Siblings
from welldone.wire.faults.catalogue import BY_ID

LINTS = 1
"""Captures that are judged at once: each takes some 100 MB, and a processor, for up to some seconds."""
READS = 8
"""Captures that are read at once, since slow senders must not keep others out: 64 MiB in all."""
_BODY_LIMIT_BYTES = 2 * linting.LIMIT_BYTES  # of a request: a capture grows by a third in base64, and less as text
_HERE_BYTES = 64 * 2**10
"""A shorter capture is judged in a thread, within 50 ms; a longer one in a process of its own: threads share the
interpreter with all streams."""
_RETRY_S = 1.0
_DIGITS = 9  # of a step's number
_TAPE = "tape"


class Inspect:
    """Answers the inspector. `is_admin`: whether a principal may know of the servers behind this one."""

    def __init__(
        self, tapes: Tapes, *, siblings: Siblings | None, body_s: float, is_admin: Callable[[str], bool]
    ) -> None:
        self._tapes = tapes
        self._siblings = siblings
        self._body_s = body_s
        self._is_admin = is_admin
        self._threads = ThreadPoolExecutor(LINTS, "lint")
        self._room = threading.BoundedSemaphore(LINTS)
        self._reading = 0
        if siblings is not None:
            siblings.register(_TAPE, self._told_of)

    async def tape(self, ask: Ask) -> Reply:
        """`GET …/tapes/{id}?from=N`."""
        question = {"principal": ask.principal, "id": _last(ask), "from": _start(ask.call.query)}
        found = await self._told_of(question)
        if not found and self._siblings is not None:
            found = next(iter(await self._siblings.gather(_TAPE, question)), b"")
        if not found:
            raise ApiError(404, "There is no such tape: it is not there yet, or not any more.", code="not_found")
        return Reply(200, found)

    async def _told_of(self, question: Question) -> bytes:
        """What this process has to say of a tape; nothing where it has none."""
        principal = question["principal"]
        watch = self._tapes.find(principal, question["id"])
        if watch is None:
            return b""
        return msgspec.json.encode(await watch.told(question["from"], is_admin=self._is_admin(principal)))

    async def lint(self, ask: Ask) -> Reply:
        """`POST …/lint`."""
        if self._reading == READS:
            raise _too_many()
        self._reading += 1
        headers = ask.call.headers
        try:
            data = await ask.call.body(limit_bytes=_BODY_LIMIT_BYTES, within_s=self._body_s)
        finally:
            self._reading -= 1
        if not self._room.acquire(blocking=False):
            raise _too_many()
        job = Job(data, headers.get("Content-Type"), "Origin" in headers)
        if len(data) > _HERE_BYTES:
            try:
                return Reply(200, await judge_in_child(job))
            finally:
                self._room.release()
        # The room is free when the thread is, be it that nobody waits for it any more.
        working = self._threads.submit(judged, job)
        working.add_done_callback(lambda _: self._room.release())
        return Reply(200, await asyncio.wrap_future(working))

    async def rule(self, ask: Ask) -> Reply:
        """`GET …/rules/{id}`."""
        fault = BY_ID.get(_last(ask))
        if fault is None:
            raise ApiError(404, "There is no such rule.", code="not_found")
        text = await asyncio.to_thread(page, fault.id)
        told = {name: getattr(fault, name) for name in ("id", "rule", "severity", "mend", "how", "hurts", "endpoints")}
        return json_reply({**told, "page": text})


def _too_many() -> ApiError:
    return ApiError(429, "Another capture is being judged.", code="too_many_lints", retry_after_s=_RETRY_S)


def _last(ask: Ask) -> str:
    """The last name in the path."""
    return ask.call.path.rpartition("/")[2]


def _start(query: str) -> int:
    """The step that is asked for first."""
    try:
        start = parse_qs(query, max_num_fields=1).get("from", ["0"])[-1]
    except ValueError:
        start = ""
    if not (start.isascii() and start.isdigit() and len(start) <= _DIGITS):
        raise invalid("'from' must be the number of a step.", param="from")
    return int(start)
