"""The official Python client as an outside judge: what it makes of a stream.

An error that the server tells in mid-stream is part of the reply. Any other exception is the test's failure.
"""

from functools import cache

from openai import APIError, ContentFilterFinishReasonError, LengthFinishReasonError, OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

from tests.oracle.reply import Choice, Reply, choice, reply

_MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


@cache
def _client() -> OpenAI:
    # One for all streams: each new one would first read every certificate of the machine.
    return OpenAI(api_key="none", base_url="http://127.0.0.1/v1", max_retries=0, timeout=20)


def _at(base_url: str) -> OpenAI:
    return _client().with_options(base_url=base_url)


def read_chat(base_url: str) -> Reply:
    """`create(stream=True)`: chunks, which a user adds up."""
    heard = reply()
    with _at(base_url).chat.completions.create(model="m", messages=_MESSAGES, stream=True) as stream:
        try:
            for chunk in stream:
                for part in chunk.choices:
                    mine = heard["choices"].setdefault(part.index, choice())
                    _add_delta(mine, part.delta)
                    mine["finish"] = part.finish_reason or mine["finish"]
                heard["usage"] = _usage(chunk.usage) or heard["usage"]
        except APIError as error:
            heard["error"] = error.message
    return heard


def read_chat_helper(base_url: str) -> Reply:
    """`.stream()`: the client adds the chunks up itself."""
    snapshot: ChatCompletion | None = None
    with _at(base_url).chat.completions.stream(model="m", messages=_MESSAGES) as stream:
        try:
            for event in stream:
                if event.type == "chunk":
                    snapshot = event.snapshot
            return _whole(stream.get_final_completion(), None)
        except (LengthFinishReasonError, ContentFilterFinishReasonError) as ended:
            # So it tells its user that an answer has these ends; the answer comes with it.
            return _whole(ended.completion, None)
        except APIError as error:
            return _whole(snapshot, error.message)


def read_completions(base_url: str) -> Reply:
    """`completions.create(stream=True)`."""
    heard = reply()
    with _at(base_url).completions.create(model="m", prompt="Hello", stream=True) as stream:
        try:
            for chunk in stream:
                for part in chunk.choices:
                    mine = heard["choices"].setdefault(part.index, choice())
                    mine["text"] += part.text
                    mine["finish"] = part.finish_reason or mine["finish"]
                heard["usage"] = _usage(chunk.usage) or heard["usage"]
        except APIError as error:
            heard["error"] = error.message
    return heard


def _add_delta(mine: Choice, delta: ChoiceDelta) -> None:
    # Every string is added up, the role and the ids too: one that is sent twice must show.
    mine["role"] += delta.role or ""
    mine["text"] += delta.content or ""
    mine["reasoning"] += (delta.model_extra or {}).get("reasoning_content") or ""
    mine["refusal"] += delta.refusal or ""
    for call in delta.tool_calls or []:
        _add_call(mine["tools"], call)


def _add_call(tools: list[list[str]], call: ChoiceDeltaToolCall) -> None:
    if call.index == len(tools):
        tools.append(["", "", ""])
    made = call.function
    for at, piece in enumerate((call.id, made and made.name, made and made.arguments)):
        tools[call.index][at] += piece or ""


def _whole(answer: ChatCompletion | None, error: str | None) -> Reply:
    heard = reply(error=error)
    if answer is not None:
        heard["usage"] = _usage(answer.usage)
        heard["choices"] = {
            part.index: choice(
                role=part.message.role,
                text=part.message.content or "",
                reasoning=(part.message.model_extra or {}).get("reasoning_content") or "",
                refusal=part.message.refusal or "",
                tools=[
                    [call.id, call.function.name, call.function.arguments]
                    for call in part.message.tool_calls or []
                    if call.type == "function"
                ],
                finish=part.finish_reason,
            )
            for part in answer.choices
        }
    return heard


def _usage(usage: CompletionUsage | None) -> list[int] | None:
    if usage is None:
        return None
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]
