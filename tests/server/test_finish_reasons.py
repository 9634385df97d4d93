"""Finish reasons that only one upstream sends, through the gateway."""

import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.protocol.build import content_chunks, finish, role, stream
from tests.server.running_gateway import gateway
from tests.table import table
from welldone.mock.script import MockChunk, MockReply

USER = [{"role": "user", "content": "Hi"}]
CLIENTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": USER},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": USER},
    "/api/chat": {"model": "m", "messages": USER},
}
ENDS = {
    "/v1/chat/completions": (b'"finish_reason":"stop"', b'"finish_reason":"length"'),
    "/v1/responses": (b'"status":"completed"', b'"status":"incomplete"'),
    "/v1/messages": (b'"stop_reason":"end_turn"', b'"stop_reason":"max_tokens"'),
    "/api/chat": (b'"done_reason":"stop"', b'"done_reason":"length"'),
}


def reply(word: str) -> MockReply:
    return MockReply((MockChunk(base64=stream(role(), *content_chunks("Hel", "lo"), finish(word))),))


@table("path", CLIENTS)
@table("is_stream", [True, False])
def test_a_word_of_the_upstream_ends_the_answers_of_all_clients(tmp_path: Path, path: str, is_stream: bool) -> None:
    async def test() -> None:
        words = {"Finished": "stop", "Full": "length"}
        async with gateway(
            tmp_path, [reply("Finished"), reply("Full"), reply("Finished")], each={"finish_reasons": words}
        ) as serving:
            for end in (*ENDS[path], ENDS[path][0]):
                answer = await serving.post({**CLIENTS[path], "stream": is_stream}, path)
                assert answer.status == 200
                assert end in answer.body
                assert b"Hel" in answer.body

    run(test())


def test_an_unknown_word_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    async def test() -> None:
        async with gateway(tmp_path, [reply("Finished")]) as serving:
            answer = await serving.post({"model": "m", "messages": USER})
            assert answer.status == 502
            error = json.loads(answer.body)["error"]
            assert error["code"] == "incomplete_stream"
            assert "the unknown finish_reason 'Finished'" in error["message"]
            assert 'set finish_reasons = {Finished = "stop"} in [upstreams.NAME]' in error["message"]

    run(test())
