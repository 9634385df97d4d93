"""What a client reads of an answer, whatever its dialect: text, thoughts, calls, finish, usage and error.

The output may end anywhere: a reader takes what is there. Names and numbers that we make up are left out.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tests.laws import plain_client
from tests.laws.plain_client import Answer

Json: TypeAlias = dict[str, Any]


def read(client: str, body: bytes) -> str:
    """The content of an answer to a client, as a line of JSON; the bytes where the plain client cannot read them."""
    try:
        answer = _READERS[client](body)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        return json.dumps({"unreadable": type(error).__name__, "body": body.decode("utf-8", "replace")})
    choices = {
        str(index): [
            *(choice.text, choice.reasoning, choice.refusal, choice.finish),
            [[call.type, call.name, call.text] for call in choice.calls],
        ]
        for index, choice in sorted(answer.choices.items())
    }
    return json.dumps([choices, answer.usage, answer.errors, answer.is_done], sort_keys=True)


def _chunks(body: bytes) -> Answer:
    return plain_client.reply_answer(body) if body.startswith(b"{") else plain_client.chunks_answer(body)


def _responses(body: bytes) -> Answer:
    if body.startswith(b"{"):
        return plain_client.responses_answer({"status": "", **json.loads(body)})
    response = plain_client.response_of(body)
    answer = plain_client.responses_answer({"status": "", **response, "output": plain_client.output_of_deltas(body)})
    answer.errors += [event for event in plain_client.objects(body) if event["type"] == "error"]
    return answer


def _messages(body: bytes) -> Answer:
    message = json.loads(body) if body.startswith(b"{") else plain_client.message_of(body)
    answer = plain_client.messages_answer(message)
    answer.is_done = message.get("is_stopped", answer.is_done)
    return answer


def _gemini(body: bytes) -> Answer:
    return plain_client.gemini_answer([json.loads(body)] if body.startswith(b"{") else plain_client.objects(body))


_READERS: dict[str, Callable[[bytes], Answer]] = {
    "chat": _chunks,
    "completions": _chunks,
    "responses": _responses,
    "messages": _messages,
    "gemini": _gemini,
    "ollama": plain_client.ollama_answer,
}


def frame_ends(body: bytes) -> Iterator[int]:
    """Positions after each empty line."""
    position = body.find(b"\n\n")
    while position >= 0:
        yield position + 2
        position = body.find(b"\n\n", position + 2)
