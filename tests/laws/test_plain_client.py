"""The plain client accumulates a chat stream as OpenAI's own client does."""

import json
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from tests.laws import plain_client, right_chunks
from tests.laws.right_chunks import Contents

# The types of OpenAI's streams have neither custom calls nor content parts.
CONTENTS = Contents(parts=False, custom_calls=False)


def accumulated(stream: bytes) -> dict[str, Any]:
    """Return what OpenAI's client makes of a stream, without the members of a delta that it does not know."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in plain_client.objects(stream):
        for choice in chunk["choices"]:
            names = ("role", "content", "refusal", "tool_calls", "function_call")
            choice["delta"] = {name: choice["delta"][name] for name in names if name in choice["delta"]}
        state.handle_chunk(ChatCompletionChunk.construct(**chunk))
    return state.current_completion_snapshot.to_dict()


@given(seed=st.integers(0, 2**32))
def test_the_plain_client_reads_a_chat_stream_as_openais_client(seed: int) -> None:
    stream = right_chunks.chat(Random(seed), CONTENTS).stream
    theirs, ours = accumulated(stream), plain_client.chunks_answer(stream)
    assert theirs["usage"] == (ours.usage[-1] if ours.usage else None)
    for choice in theirs["choices"]:
        own, message = ours.choices[choice["index"]], choice["message"]
        calls = [call | call["function"] for call in message.get("tool_calls") or []]
        if message.get("function_call"):
            calls = [{"id": "", **message["function_call"]}]
        assert message["role"] == "assistant"
        assert (message.get("content") or "", message.get("refusal") or "") == (own.text, own.refusal)
        assert [choice["finish_reason"]] == own.finish
        assert [(call["id"], call["name"], call["arguments"]) for call in calls] == [
            (call.id, call.name, call.text) for call in own.calls
        ]
        logprobs = {name: entries for name, entries in (choice.get("logprobs") or {}).items() if entries}
        assert json.loads(json.dumps(logprobs)) == own.logprobs
