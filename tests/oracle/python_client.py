"""The official Python client as a reference reader.

A mid-stream error is part of the reply. Any other exception fails the test.
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
    # One client for all streams: each new one loads all CA certificates.
    return OpenAI(api_key="none", base_url="http://127.0.0.1/v1", max_retries=0, timeout=20)


def _at(base_url: str) -> OpenAI:
    return _client().with_options(base_url=base_url)


def read_chat(base_url: str) -> Reply:
    """Read with `create(stream=True)`; the caller joins the chunks."""
    result = reply()
    with _at(base_url).chat.completions.create(model="m", messages=_MESSAGES, stream=True) as stream:
        try:
            for chunk in stream:
                for part in chunk.choices:
                    mine = result["choices"].setdefault(part.index, choice())
                    _add_delta(mine, part.delta)
                    mine["finish"] = part.finish_reason or mine["finish"]
                result["usage"] = _usage(chunk.usage) or result["usage"]
        except APIError as error:
            result["error"] = error.message
    return result


def read_chat_helper(base_url: str) -> Reply:
    """Read with `.stream()`; the client joins the chunks."""
    snapshot: ChatCompletion | None = None
    with _at(base_url).chat.completions.stream(model="m", messages=_MESSAGES) as stream:
        try:
            for event in stream:
                if event.type == "chunk":
                    snapshot = event.snapshot
            return _whole(stream.get_final_completion(), None)
        except (LengthFinishReasonError, ContentFilterFinishReasonError) as ended:
            # The client raises for these finish reasons; the exception has the answer.
            return _whole(ended.completion, None)
        except APIError as error:
            return _whole(snapshot, error.message)


def read_completions(base_url: str) -> Reply:
    """Read with `completions.create(stream=True)`."""
    result = reply()
    with _at(base_url).completions.create(model="m", prompt="Hello", stream=True) as stream:
        try:
            for chunk in stream:
                for part in chunk.choices:
                    mine = result["choices"].setdefault(part.index, choice())
                    mine["text"] += part.text
                    mine["finish"] = part.finish_reason or mine["finish"]
                result["usage"] = _usage(chunk.usage) or result["usage"]
        except APIError as error:
            result["error"] = error.message
    return result


def _add_delta(mine: Choice, delta: ChoiceDelta) -> None:
    # Join every string, including role and ids, so that repetition is visible.
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
    result = reply(error=error)
    if answer is not None:
        result["usage"] = _usage(answer.usage)
        result["choices"] = {
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
    return result


def _usage(usage: CompletionUsage | None) -> list[int] | None:
    if usage is None:
        return None
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]
