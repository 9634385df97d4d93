"""Streams that follow a template: the client gets the same as without it."""

from pathlib import Path

import msgspec

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import CHAT
from tests.server.test_same_dialect import frames, message_events
from tests.table import table
from welldone.core.answer_format import KEEP_ALIVE
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply

STREAM = {**CHAT, "stream": True}
LATER = msgspec.structs.replace(
    HELLO_REPLY,
    pieces=tuple(MockChunk(piece.text.replace("chatcmpl-1", "chatcmpl-2")) for piece in HELLO_REPLY.pieces),
)
ROLE, TEXT, *END = LATER.pieces
OTHERS = {
    "the same": LATER,
    "a cut": MockReply((ROLE, TEXT), end="cut"),
    "no end": MockReply((ROLE, TEXT)),
    "no end marker": MockReply((ROLE, TEXT, END[0])),
    "an error": MockReply((ROLE, TEXT, MockChunk('data: {"error":{"message":"out of memory"}}\n\n'))),
    "an error first": MockReply((MockChunk('data: {"error":{"message":"out of memory"}}\n\n'),)),
    "another role": MockReply((MockChunk(ROLE.text.replace(',"content":""', "")), TEXT, *END)),
    "half a frame": MockReply((ROLE, MockChunk(TEXT.text[:40]), MockChunk(TEXT.text[40:], after_s=0.01), *END)),
    "many texts": MockReply((ROLE, *[TEXT] * 100, *END)),
    "paced": MockReply((ROLE, *[MockChunk(TEXT.text, after_s=0.001)] * 50, *END)),
    "a keep-alive": MockReply((ROLE, MockChunk(": ping\n\n"), TEXT, *END)),
}


@table("other", OTHERS.values(), ids=OTHERS)
def test_any_stream_after_the_first_one_is_answered_as_before(tmp_path: Path, other: MockReply) -> None:
    async def work() -> None:
        replies = []
        for script in ([other], [HELLO_REPLY, other]):
            async with gateway(tmp_path, script, continuation="off") as serving:
                *_, reply = [await serving.post(STREAM) for _ in script]
                row = (await serving.get("/page/api/state")).json["recent"][0]
                replies.append((reply.status, reply.body, row.get("repaired"), row.get("error")))
        assert replies[0] == replies[1]

    run(work())


def test_keep_alives_in_a_pause_change_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        texts = [MockChunk(TEXT.text.replace("Hello", f" {number}"), after_s=0.001) for number in range(9)]
        paused = MockReply((ROLE, *texts, MockChunk(TEXT.text, after_s=0.2), *texts, *END))
        bodies = []
        for script in ([paused], [HELLO_REPLY, paused]):
            async with gateway(tmp_path, script, keep_alive_s=0.02) as serving:
                *_, reply = [await serving.post(STREAM) for _ in script]
                assert KEEP_ALIVE in reply.body
                bodies.append(reply.body.replace(KEEP_ALIVE, b""))
        assert bodies[0] == bodies[1]

    run(work())


def test_another_upstream_is_not_read_by_the_template_of_one_that_failed(tmp_path: Path) -> None:
    async def work() -> None:
        for refusals in (0, 1):  # 0: the first stream learns, 1: the next one would follow the template
            failed = MockReply(status=503)
            messages = MockReply(frames(*message_events()))
            settings = {"chat": False, "speaks": ("messages",), "weight": 1}
            script = [*[HELLO_REPLY] * refusals, failed]
            async with gateway(tmp_path, [messages], script, each={"weight": 100}, first=settings) as serving:
                replies = [await serving.post(STREAM) for _ in range(refusals + 1)]
                assert [reply.body.count(b"Hello") for reply in replies] == [1] * len(replies)
                assert replies[-1].body.endswith(b"data: [DONE]\n\n")
                assert len(serving.upstreams[0].requests) == 1

    run(work())


def test_the_second_stream_follows_the_template_of_the_first(tmp_path: Path) -> None:
    async def work() -> None:
        hanging = MockReply((ROLE, TEXT), end="hang")
        async with gateway(tmp_path, [HELLO_REPLY, LATER, hanging]) as serving:
            assert [(await serving.post(STREAM)).body.count(b"chatcmpl-2") for _ in range(2)] == [0, 3]
            _, writer = await serving.send(STREAM)
            while not any(task.times.ttft_s is not None for task in serving.answers()):
                await serving.get("/health")
            (task,) = serving.answers()
            assert task.pipeline._templated is not None
            assert task.pipeline.current.part_state(0).name == "ANSWERING"
            assert not task.pipeline._templated is not None
            writer.close()

    run(work())
