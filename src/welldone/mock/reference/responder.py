"""Responder of the reference server: turns requests into events and replies.

A subclass can make single decisions differently.
"""

import json
import time
from collections.abc import Iterator
from itertools import count, zip_longest

import msgspec

from welldone.core import events as ev
from welldone.core import sse
from welldone.core.answer_format import KEEP_ALIVE, DialectWriter, TranslatedFormat
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Usage
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.gemini.writer import GeminiFormat, GeminiWriter
from welldone.dialects.registry import DIALECTS
from welldone.gateway.errors import invalid_request
from welldone.mock.reference import choices
from welldone.mock.reference.choices import MockChoice, count_tokens, tokenize, truncate_at_stop, truncate_to_limit
from welldone.mock.reference.schemas import (
    MockChatRequest,
    MockCompletionRequest,
    includes_usage,
    message_text,
    stop_strings,
)
from welldone.mock.reference.tool_calls import SchemaSampler, tool_calls_for
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.schemas.chat import GenerationBody, JsonObjectFormat, JsonSchemaFormat

_KEEP_ALIVE_S = 10.0
"""Interval of keep-alive comments. Load balancers close connections that are idle for 60 s, some after 15 s."""
_THINKING_SUFFIX = "-thinking"
"""Suffix of the names of reasoning models."""
_TEMPLATE_TOKENS_PER_MESSAGE = 4  # the tokens that chat templates add to a message


class MockResponder:
    """Correct answers to requests.

    `text`: the default answer. `gap_s`: delay before each token. `context`: limit of prompt and answer together, in
    tokens.
    """

    def __init__(self, *, text: str, gap_s: float, context: int) -> None:
        self.text = text
        self.gap_s = gap_s
        self.context = context
        self.reply_numbers: count[int] = count(1)

    def chat(self, request: MockChatRequest, dialect: TranslatedFormat | None = None) -> MockReply:
        """Answer a request to /v1/chat/completions, or one of another dialect that was converted to a chat."""
        prompt_tokens = self.count_chat(request)
        choice = self.apply_limits(self.choose_answer(request), request, prompt_tokens)
        endpoint = (dialect or ChunkFormat).endpoint
        return self.render(endpoint, request, [choice] * (request.n or 1), prompt_tokens, dialect)

    def completions(self, request: MockCompletionRequest) -> MockReply:
        """Answer a request to /v1/completions. Choice `index` belongs to prompt `index // n`."""
        choices = []
        total = 0
        for prompt in request.prompts:
            prompt_tokens = self.count_prompt([prompt], 0)
            total += prompt_tokens
            answer = MockChoice(text=tokenize(self.text_for(prompt)), echo=tokenize(prompt) if request.echo else ())
            choices += [self.apply_limits(answer, request, prompt_tokens)] * (request.n or 1)
        return self.render(Endpoint.COMPLETIONS, request, choices, total)

    def count_chat(self, request: MockChatRequest) -> int:
        """Count the tokens of a chat. Raises `ApiError` if they leave no room for an answer."""
        return self.count_prompt([message_text(message) for message in request.messages], len(request.messages))

    def count_prompt(self, texts: list[str], messages: int) -> int:
        """Count the tokens of a prompt. Raises `ApiError` if they leave no room for an answer."""
        tokens = count_tokens(texts, self.context) + messages * _TEMPLATE_TOKENS_PER_MESSAGE
        if tokens >= self.context:
            message = f"This model's maximum context length is {self.context} tokens. Please shorten the prompt."
            param = "messages" if messages else "prompt"
            raise invalid_request(message, param=param, code="context_length_exceeded")
        return tokens

    def apply_limits(
        self,
        choice: MockChoice,
        request: MockChatRequest | MockCompletionRequest,
        prompt_tokens: int,
    ) -> MockChoice:
        """Apply the context length, the token limit and the stop strings."""
        available = self.context - prompt_tokens
        limit = available if request.token_limit is None else min(request.token_limit, available)
        return self.apply_stop_strings(truncate_to_limit(choice, limit), stop_strings(request))

    def apply_stop_strings(self, choice: MockChoice, stops: list[str]) -> MockChoice:
        """Apply the stop strings."""
        return truncate_at_stop(choice, stops)

    def choose_answer(self, request: MockChatRequest) -> MockChoice:
        """Choose the answer to a chat: tool calls or text."""
        reasoning = self.reasoning_tokens(request)
        if calls := tool_calls_for(request):
            return MockChoice(reasoning=reasoning, tool_calls=calls, finish_reason="tool_calls")
        return MockChoice(reasoning=reasoning, text=tokenize(self._answer_text(request)))

    def reasoning_tokens(self, request: MockChatRequest) -> tuple[str, ...]:
        """Return the reasoning that precedes the answer of a reasoning model."""
        return tokenize(choices.REASONING_TEXT) if (request.model or "").endswith(_THINKING_SUFFIX) else ()

    def _answer_text(self, request: MockChatRequest) -> str:
        """Return the text of an answer: JSON for a `response_format`, tool results, or a canned text."""
        response_format = request.response_format
        if isinstance(response_format, JsonObjectFormat | JsonSchemaFormat):
            schema = response_format.json_schema.schema if isinstance(response_format, JsonSchemaFormat) else None
            schema = schema or {"properties": {"answer": {}}}
            return json.dumps(SchemaSampler(schema, request.prompt, (self.text,)).sample(), ensure_ascii=False)
        results = request.tool_results
        return f"The result is: {'; '.join(results)}" if results else self.text_for(request.prompt)

    def text_for(self, prompt: str) -> str:
        """Return the text for a prompt."""
        return choices.text_for(prompt, self.text)

    def render(
        self,
        endpoint: Endpoint,
        request: GenerationBody,
        choices: list[MockChoice],
        prompt_tokens: int,
        dialect: TranslatedFormat | None = None,
    ) -> MockReply:
        """Return the reply with some choices, in the dialect; without one as chunks or an object of chat."""
        id = f"{DIALECTS[endpoint].id_prefix}ideal{next(self.reply_numbers)}"
        envelope = Envelope(id, int(time.time()), request.model or "", "fp_ideal")
        events = [_choice_events(request, index, choice, id) for index, choice in enumerate(choices)]
        usage = self.usage(endpoint, choices, prompt_tokens)
        has_usage = dialect is not None or includes_usage(request)
        writes = dialect or ChunkFormat(RequestFacts(include_usage=has_usage), endpoint)
        if request.stream:
            reply = self.stream(writes.make_writer(envelope, lambda: usage), events, usage if has_usage else None)
            return msgspec.structs.replace(reply, headers=dict(writes.HEADERS))
        rows = _interleave_choices(events)
        collected = collect([event for row in rows for event in row] + [usage])
        encoded = writes.encode_reply(envelope, collected)
        chunk = MockChunk(base64=encoded, after_s=self.gap_s * sum(map(_has_token, rows)))
        return MockReply((chunk,), headers=dict(JSON_HEADERS), framing="length")

    def usage(self, endpoint: Endpoint, choices: list[MockChoice], prompt_tokens: int) -> Usage:
        """Return the usage of all choices together."""
        generated = sum(choice.generated_tokens for choice in choices)
        details = {
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": sum(len(choice.reasoning) for choice in choices)},
        }
        has_details = endpoint is not Endpoint.COMPLETIONS
        return Usage(prompt_tokens, generated, prompt_tokens + generated, details if has_details else {})

    def stream(self, writer: DialectWriter, events: list[list[Event]], usage: Usage | None) -> MockReply:
        """Return a streamed reply."""
        rows = _interleave_choices(events)
        if usage is not None:
            rows.append([usage])
        return MockReply(tuple(_stream_chunks(rows, writer, self.gap_s)), headers=dict(sse.HEADERS))


def _choice_events(request: GenerationBody, index: int, choice: MockChoice, reply_id: str) -> list[Event]:
    events: list[Event] = [ev.ChoiceStart(index), *(ev.Reasoning(index, token) for token in choice.reasoning)]
    offset = 0
    for token_index, token in enumerate(choice.echo + choice.text):
        if isinstance(request, MockChatRequest) and request.logprobs:
            events.append(ev.Logprobs(index, choices.chat_logprobs(token, request.top_logprobs or 0)))
        elif isinstance(request, MockCompletionRequest) and request.logprobs is not None:
            is_first = token_index == 0 and bool(choice.echo)
            logprobs = choices.completion_logprobs(token, offset, request.logprobs, is_first=is_first)
            events.append(ev.Logprobs(index, logprobs))
        events.append(ev.Text(index, token))
        offset += len(token)
    for number, tool_call in enumerate(choice.tool_calls):
        id = f"call_{reply_id.replace('-', '_').rpartition('_')[2]}_{index}_{number}"
        events.append(ev.ToolCall(index, number, id, tool_call.name, {}, tool_call.is_custom))
        events += [ev.ToolArguments(index, number, token, {}, tool_call.is_custom) for token in tool_call.arguments]
    return [*events, ev.Finish(index, choice.finish_reason, choice.stop_string)]


def _interleave_choices(choices: list[list[Event]]) -> list[list[Event]]:
    """Return the events of all choices in rows, in the order of a server that generates them in parallel."""
    return [[event for event in row if event is not None] for row in zip_longest(*choices)]


def _stream_chunks(rows: list[list[Event]], writer: DialectWriter, token_delay_s: float) -> Iterator[MockChunk]:
    """Encode a stream: one chunk per event, and a delay before each row that has a token."""
    keep_alive = GeminiFormat.INITIAL_KEEP_ALIVE if isinstance(writer, GeminiWriter) else KEEP_ALIVE
    for row in rows:
        delay_s = token_delay_s if _has_token(row) else 0.0
        for data in filter(None, map(writer.send, row)):
            while delay_s > _KEEP_ALIVE_S:
                delay_s -= _KEEP_ALIVE_S
                yield MockChunk(base64=keep_alive, after_s=_KEEP_ALIVE_S)
            yield MockChunk(base64=data, after_s=delay_s)
            delay_s = 0.0
    yield MockChunk(base64=writer.end())


def _has_token(row: list[Event]) -> bool:
    return any(isinstance(event, ev.Text | ev.Reasoning | ev.ToolCall | ev.ToolArguments) for event in row)
