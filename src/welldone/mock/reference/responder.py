"""Responder of the reference server: turns requests into events and replies.

Each decision has its own method, so that a subclass can make it differently.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, zip_longest
from typing import TypeAlias

from welldone.mock.reference import choices, schemas
from welldone.mock.reference.choices import MockChoice, count_tokens, tokenize, truncate_at_stop, truncate_to_limit
from welldone.mock.reference.tool_calls import SchemaSampler, tool_calls_for
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.protocol import sse
from welldone.protocol.collect import CollectedReply as Collected
from welldone.protocol.collect import collect
from welldone.protocol.dialects import chat
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import KEEP_ALIVE, DialectWriter, TranslatedDialect
from welldone.protocol.dialects.chat import ChunkWriter
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import ID_PREFIX, Endpoint, Envelope
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Finish,
    Json,
    Logprobs,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.schemas.anthropic import AnthropicRequest
from welldone.schemas.chat import JsonObjectFormat, JsonSchemaFormat

TOKEN_EVENTS = (Text, Reasoning, ToolCall, ToolArguments)
_KEEP_ALIVE_S = 10.0
"""Interval of keep-alive comments. Load balancers close connections that are idle for 60 s, some after 15 s."""
THINKING_SUFFIX = "-thinking"
"""Suffix of the names of reasoning models."""
_TEMPLATE_TOKENS_PER_MESSAGE = 4  # the tokens that chat templates add to a message

ReplyEncoder: TypeAlias = Callable[[Envelope, Collected], bytes]


def interleave_choices(choices: list[list[Event]]) -> Iterator[list[Event]]:
    """Return the events of all choices in rows, in the order of a server that generates them in parallel."""
    for row in zip_longest(*choices):
        yield [event for event in row if event is not None]


def stream_chunks(rows: Iterable[list[Event]], writer: DialectWriter, token_delay_s: float) -> Iterator[MockChunk]:
    """Encode a stream: one chunk per event, and a delay before each row that has a token."""
    for row in rows:
        delay_s = token_delay_s if has_token(row) else 0.0
        for event in row:
            data = writer.send(event)
            if data:
                yield from _delayed_chunks(delay_s, data)
                delay_s = 0.0
    yield MockChunk(base64=writer.end())


def has_token(row: list[Event]) -> bool:
    """Return whether a row contains a generated token."""
    return any(isinstance(event, TOKEN_EVENTS) for event in row)


def _delayed_chunks(delay_s: float, data: bytes) -> Iterator[MockChunk]:
    while delay_s > _KEEP_ALIVE_S:
        delay_s -= _KEEP_ALIVE_S
        yield MockChunk(base64=KEEP_ALIVE, after_s=_KEEP_ALIVE_S)
    yield MockChunk(base64=data, after_s=delay_s)


class MockResponder:
    """Correct answers to requests.

    `text`: the default answer. `gap_s`: delay before each token. `context`: limit of prompt and answer together, in
    tokens.
    """

    def __init__(self, *, text: str, gap_s: float, context: int) -> None:
        self.text = text
        self.gap_s = gap_s
        self.context = context
        self._reply_numbers = count(1)

    def chat(self, request: schemas.MockChatRequest) -> MockReply:
        """Answer a request to /v1/chat/completions."""
        prompt_tokens = self.count_chat(request)
        answer = self.choose_answer(request)
        choice = self.apply_limits(answer, request.token_limit, request.stop_strings, prompt_tokens)
        return self.render(Endpoint.CHAT, request, [choice] * (request.n or 1), prompt_tokens)

    def completions(self, request: schemas.MockCompletionRequest) -> MockReply:
        """Answer a request to /v1/completions. Choice `index` belongs to prompt `index // n`."""
        choices = []
        total = 0
        for prompt in request.prompts:
            prompt_tokens = self.count_prompt([prompt], 0)
            total += prompt_tokens
            answer = self.complete_prompt(request, prompt)
            choice = self.apply_limits(answer, request.token_limit, request.stop_strings, prompt_tokens)
            choices += [choice] * (request.n or 1)
        return self.render(Endpoint.COMPLETIONS, request, choices, total)

    def responses(self, request: schemas.MockResponsesRequest) -> MockReply:
        """Answer a request to /v1/responses."""
        dialect = ResponsesDialect(request.echoed_fields, is_summary=request.includes_summary, clock=time.time)
        return self.translate(Endpoint.RESPONSES, request.as_chat, dialect)

    def messages(self, request: AnthropicRequest) -> MockReply:
        """Answer a request to /v1/messages."""
        chat_request = schemas.anthropic_to_chat(request)
        dialect = MessagesDialect(stop_sequences=tuple(chat_request.stop_strings))
        return self.translate(Endpoint.MESSAGES, chat_request, dialect)

    def translate(self, endpoint: Endpoint, request: schemas.MockChatRequest, dialect: TranslatedDialect) -> MockReply:
        """Answer a chat request in another dialect."""
        prompt_tokens = self.count_chat(request)
        answer = self.choose_answer(request)
        choice = self.apply_limits(answer, request.token_limit, request.stop_strings, prompt_tokens)
        envelope = self.envelope(endpoint, request)
        events = [self.events(request, 0, choice, envelope)]
        usage = self.usage(Endpoint.CHAT, [choice], prompt_tokens)
        if request.stream:
            return self.stream(dialect.make_writer(envelope, lambda: usage), events, usage)
        return self.buffered(dialect.encode_reply, envelope, events, usage)

    def count_chat(self, request: schemas.MockChatRequest) -> int:
        """Count the tokens of a chat. Raises `MockApiError` if they leave no room for an answer."""
        return self.count_prompt([schemas.message_text(message) for message in request.messages], len(request.messages))

    def count_prompt(self, texts: list[str], messages: int) -> int:
        """Count the tokens of a prompt. Raises `MockApiError` if they leave no room for an answer."""
        tokens = count_tokens(texts, self.context) + messages * _TEMPLATE_TOKENS_PER_MESSAGE
        if tokens >= self.context:
            raise schemas.invalid_request(
                f"This model's maximum context length is {self.context} tokens. Please shorten the prompt.",
                "messages" if messages else "prompt",
                "context_length_exceeded",
            )
        return tokens

    def apply_limits(
        self, choice: MockChoice, max_tokens: int | None, stops: list[str], prompt_tokens: int
    ) -> MockChoice:
        """Apply the context length, the token limit and the stop strings."""
        available = self.context - prompt_tokens
        limit = available if max_tokens is None else min(max_tokens, available)
        return self.apply_stop_strings(self.apply_token_limit(choice, limit), stops)

    def apply_token_limit(self, choice: MockChoice, max_tokens: int) -> MockChoice:
        """Apply the token limit."""
        return truncate_to_limit(choice, max_tokens)

    def apply_stop_strings(self, choice: MockChoice, stops: list[str]) -> MockChoice:
        """Apply the stop strings."""
        return truncate_at_stop(choice, stops)

    def choose_answer(self, request: schemas.MockChatRequest) -> MockChoice:
        """Choose the answer to a chat: tool calls or text."""
        reasoning = self.reasoning_tokens(request)
        if calls := tool_calls_for(request):
            return MockChoice(reasoning=reasoning, tool_calls=calls, finish_reason="tool_calls")
        return MockChoice(reasoning=reasoning, text=tokenize(self.answer_text(request)))

    def reasoning_tokens(self, request: schemas.MockChatRequest) -> tuple[str, ...]:
        """Return the reasoning that precedes the answer of a reasoning model."""
        return tokenize(choices.REASONING_TEXT) if (request.model or "").endswith(THINKING_SUFFIX) else ()

    def answer_text(self, request: schemas.MockChatRequest) -> str:
        """Return the text of an answer: JSON for a `response_format`, tool results, or a canned text."""
        response_format = request.response_format
        if isinstance(response_format, JsonObjectFormat | JsonSchemaFormat):
            schema = response_format.json_schema.schema if isinstance(response_format, JsonSchemaFormat) else None
            schema = schema or {"properties": {"answer": {}}}
            return json.dumps(SchemaSampler(schema, request.prompt, (self.text,)).sample(), ensure_ascii=False)
        results = request.tool_results
        return choices.tool_result_text(results) if results else self.text_for(request.prompt)

    def text_for(self, prompt: str) -> str:
        """Return the text for a prompt."""
        return choices.text_for(prompt, self.text)

    def complete_prompt(self, request: schemas.MockCompletionRequest, prompt: str) -> MockChoice:
        """Return the choice for one prompt of a completion."""
        return MockChoice(text=tokenize(self.text_for(prompt)), echo=tokenize(prompt) if request.echo else ())

    def render(
        self, endpoint: Endpoint, request: schemas.MockGenerationRequest, choices: list[MockChoice], prompt_tokens: int
    ) -> MockReply:
        """Return the reply of chat or completions for some choices."""
        envelope = self.envelope(endpoint, request)
        events = [self.events(request, index, choice, envelope) for index, choice in enumerate(choices)]
        usage = self.usage(endpoint, choices, prompt_tokens)
        if request.stream:
            writer = self.writer(endpoint, envelope, request)
            return self.stream(writer, events, usage if request.includes_usage else None)
        return self.buffered(partial(chat.encode_completion, endpoint=endpoint), envelope, events, usage)

    def envelope(self, endpoint: Endpoint, request: schemas.MockGenerationRequest) -> Envelope:
        """Create the envelope of a reply, with a new id."""
        id = f"{ID_PREFIX[endpoint]}ideal{next(self._reply_numbers)}"
        return Envelope(id, int(time.time()), request.model or "", "fp_ideal")

    def usage(self, endpoint: Endpoint, choices: list[MockChoice], prompt_tokens: int) -> Usage:
        """Return the usage of all choices together."""
        generated = sum(choice.generated_tokens for choice in choices)
        reasoning = sum(len(choice.reasoning) for choice in choices)
        details = {
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
        return Usage(prompt_tokens, generated, prompt_tokens + generated, details if endpoint is Endpoint.CHAT else {})

    def writer(self, endpoint: Endpoint, envelope: Envelope, request: schemas.MockGenerationRequest) -> ChunkWriter:
        """Create the writer of a stream."""
        return ChunkWriter(envelope, endpoint, usage_is_null=request.includes_usage)

    def stream(self, writer: DialectWriter, events: list[list[Event]], usage: Usage | None) -> MockReply:
        """Return a streamed reply."""
        rows = list(interleave_choices(events))
        if usage is not None:
            rows.append([usage])
        return MockReply(tuple(stream_chunks(rows, writer, self.gap_s)), headers=dict(sse.HEADERS))

    def buffered(self, encode: ReplyEncoder, envelope: Envelope, events: list[list[Event]], usage: Usage) -> MockReply:
        """Return a buffered reply, after the delays of all its tokens."""
        rows = list(interleave_choices(events))
        reply = collect([event for row in rows for event in row] + [usage])
        data = encode(envelope, reply)
        after_s = self.gap_s * sum(map(has_token, rows))
        return MockReply((MockChunk(base64=data, after_s=after_s),), headers=dict(JSON_HEADERS), framing="length")

    def events(
        self, request: schemas.MockGenerationRequest, index: int, choice: MockChoice, envelope: Envelope
    ) -> list[Event]:
        """Return the events of one choice."""
        events: list[Event] = [ChoiceStart(index), *(Reasoning(index, token) for token in choice.reasoning)]
        offset = 0
        for token_index, token in enumerate(choice.echo + choice.text):
            is_first = token_index == 0 and bool(choice.echo)
            if logprobs := self.token_logprobs(request, token, offset, is_first=is_first):
                events.append(Logprobs(index, logprobs))
            events.append(Text(index, token))
            offset += len(token)
        for number, call in enumerate(choice.tool_calls):
            id = self.tool_call_id(envelope, index, number)
            events.append(ToolCall(index, number, id, call.name, {}, call.is_custom))
            events += [ToolArguments(index, number, token, {}, call.is_custom) for token in call.arguments]
        return [*events, Finish(index, choice.finish_reason, choice.stop_string)]

    def tool_call_id(self, envelope: Envelope, index: int, call_index: int) -> str:
        """Return a unique id for a tool call."""
        return f"call_{envelope.id.replace('-', '_').rpartition('_')[2]}_{index}_{call_index}"

    def token_logprobs(
        self, request: schemas.MockGenerationRequest, token: str, offset: int, *, is_first: bool
    ) -> Json | None:
        """Return the log probabilities of a token, if they were requested."""
        if isinstance(request, schemas.MockChatRequest) and request.logprobs:
            return choices.chat_logprobs(token, request.top_logprobs or 0)
        if isinstance(request, schemas.MockCompletionRequest) and request.logprobs is not None:
            return choices.completion_logprobs(token, offset, request.logprobs, is_first=is_first)
        return None
