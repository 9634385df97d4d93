"""A gateway in front of an upstream with scripted replies."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.support.server import Running
from tests.support.upstream import Upstream, gateway
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply, MockScript

Json = dict[str, Any]

MODELS = ("scripted", "other")
DONE = MockChunk("data: [DONE]\n\n")


def delta(value: Json, finish: str | None = None, *, after_s: float = 0.0) -> MockChunk:
    """A chunk with this delta."""
    return MockChunk(CHUNK_TEMPLATE % (msgspec.json.encode(value).decode(), json.dumps(finish)), after_s=after_s)


ROLE = delta({"role": "assistant", "content": ""})
STOP = delta({}, "stop")


def usage(prompt: int, completion: int) -> MockChunk:
    """A usage chunk."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": []}
    return MockChunk(f"data: {json.dumps({**body, 'usage': counts})}\n\n")


def saying(*texts: str, counts: tuple[int, int] = (7, 3)) -> MockReply:
    """A correct reply with one frame per text."""
    return MockReply((ROLE, *(delta({"content": text}) for text in texts), STOP, usage(*counts), DONE))


class Stage:
    """A gateway and its scripted upstream."""

    def __init__(self, upstream: Upstream, server: Running, next_replies: deque[MockReply]) -> None:
        self.upstream, self.server = upstream, server
        self._next = next_replies

    def set_replies(self, *replies: MockReply) -> None:
        """Set the next replies; the last one is repeated."""
        self._next.clear()
        self._next.extend(replies)

    def last_request(self) -> Json:
        """The body of the latest request to the upstream."""
        body: Json = json.loads(self.upstream.posts()[-1].body)
        return body


@contextmanager
def staged(
    folder: Path, *options: str, models: Sequence[str] = MODELS, key: str | None = None, more: str = ""
) -> Iterator[Stage]:
    """Run a gateway with a scripted upstream."""
    replies = deque([HELLO_REPLY])
    named = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
    made = Upstream(lambda _: replies.popleft() if len(replies) > 1 else replies[0], MockScript(models=named))
    try:
        made.start()
        each = {"models": list(models)}
        with gateway(folder, made.url, options=options, each=each, key=key, more=more) as server:
            yield Stage(made, server, replies)
    finally:
        made.end()
