"""Answers: what is said to a request, within which limits, and as which reply. Each decision has its own method."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, zip_longest
from typing import TypeAlias

from welldone.mock.reference import choices
from welldone.mock.reference.anthropic import MockMessagesRequest
from welldone.mock.reference.choices import MockChoice, count_tokens, tokenize, truncate_at_stop, truncate_to_limit
from welldone.mock.reference.responses import MockResponsesRequest
from welldone.mock.reference.schemas import (
    MockChatRequest,
    MockCompletionRequest,
    MockGenerationRequest,
    invalid_request,
)
from welldone.mock.reference.tool_calls import SchemaSampler, tool_calls_for
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.protocol import sse
from welldone.protocol.collect import CollectedReply as Collected
from welldone.protocol.collect import collect
from welldone.protocol.dialects import chat
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import KEEP_ALIVE, DialectWriter, TranslatedDialect
from welldone.protocol.dialects.chat import ChatWriter, ChunkWriter, CompletionsWriter
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

# Events as the pieces of a reply: each event of a stream in one piece, after the pause that a token takes.


TOKEN_EVENTS = (Text, Reasoning, ToolCall, ToolArguments)
_KEEP_ALIVE_S = 10.0
"""The longest silence in a stream: load balancers close a connection after 60 s of it, and some after 15 s."""


def interleave_choices(choices: list[list[Event]]) -> Iterator[list[Event]]:
    """The events of all choices in rows, as a server sends them that computes them together."""
    for row in zip_longest(*choices):
        yield [event for event in row if event is not None]


def stream_chunks(rows: Iterable[list[Event]], writer: DialectWriter, token_delay_s: float) -> Iterator[MockChunk]:
    """A stream up to its end. A row with tokens comes after a pause."""
    for row in rows:
        wait_s = token_delay_s if has_token(row) else 0.0
        for event in row:
            data = writer.send(event)
            if data:
                yield from _delayed_chunks(wait_s, data)
                wait_s = 0.0
    yield MockChunk(base64=writer.end())


def has_token(row: list[Event]) -> bool:
    """Whether computing it takes time."""
    return any(isinstance(event, TOKEN_EVENTS) for event in row)


def _delayed_chunks(delay_s: float, data: bytes) -> Iterator[MockChunk]:
    while delay_s > _KEEP_ALIVE_S:
        delay_s -= _KEEP_ALIVE_S
        yield MockChunk(base64=KEEP_ALIVE, after_s=_KEEP_ALIVE_S)
    yield MockChunk(base64=data, after_s=delay_s)


THINKING_SUFFIX = "-thinking"
"""The end of the name of a model that thinks before it answers."""
_TEMPLATE_TOKENS_PER_MESSAGE = 4  # what templates put around a message

ReplyEncoder: TypeAlias = Callable[[Envelope, Collected], bytes]


class MockResponder:
    """Right answers. `gap_s`: the pause before each token. `context`: how many tokens a prompt and its answer may have.

    `text` is what is said where a prompt asks for nothing in particular.
    """

    def __init__(self, *, text: str, gap_s: float, context: int) -> None:
        self.text = text
        self.gap_s = gap_s
        self.context = context
        self._reply_numbers = count(1)

    def chat(self, request: MockChatRequest) -> MockReply:
        """The reply to a chat."""
        prompt = self.count_chat(request)
        said = self.apply_limits(self.choose_answer(request), request.token_limit, request.stop_strings, prompt)
        return self.render(Endpoint.CHAT, request, [said] * (request.n or 1), prompt)

    def completions(self, request: MockCompletionRequest) -> MockReply:
        """The reply to prompts that are to be continued. Choice `index` is of prompt `index // n`."""
        choices = []
        total = 0
        for prompt in request.prompts:
            counted = self.count_prompt([prompt], 0)
            total += counted
            said = self.apply_limits(
                self.complete_prompt(request, prompt), request.token_limit, request.stop_strings, counted
            )
            choices += [said] * (request.n or 1)
        return self.render(Endpoint.COMPLETIONS, request, choices, total)

    def responses(self, request: MockResponsesRequest) -> MockReply:
        """The reply of /v1/responses."""
        dialect = ResponsesDialect(request.echoed_fields, is_summary=request.includes_summary, clock=time.time)
        return self.translate(Endpoint.RESPONSES, request.as_chat, dialect)

    def messages(self, request: MockMessagesRequest) -> MockReply:
        """The reply of /v1/messages."""
        chat = request.as_chat
        return self.translate(Endpoint.MESSAGES, chat, MessagesDialect(stop_sequences=tuple(chat.stop_strings)))

    def translate(self, endpoint: Endpoint, request: MockChatRequest, dialect: TranslatedDialect) -> MockReply:
        """What is said to a chat, in another dialect."""
        prompt = self.count_chat(request)
        said = self.apply_limits(self.choose_answer(request), request.token_limit, request.stop_strings, prompt)
        head = self.envelope(endpoint, request)
        events, usage = [self.events(request, 0, said, head)], self.usage(Endpoint.CHAT, [said], prompt)
        if request.stream:
            return self.stream(dialect.make_writer(head, lambda: usage), events, usage)
        return self.buffered(dialect.encode_reply, head, events, usage)

    def count_chat(self, request: MockChatRequest) -> int:
        """The tokens of a chat. Raises `RefusedError` where no answer fits after it."""
        return self.count_prompt([message.text for message in request.messages], len(request.messages))

    def count_prompt(self, texts: list[str], messages: int) -> int:
        """The tokens of a prompt. Raises `RefusedError` where no answer fits after it."""
        tokens = count_tokens(texts, self.context) + messages * _TEMPLATE_TOKENS_PER_MESSAGE
        if tokens >= self.context:
            raise invalid_request(
                f"This model's maximum context length is {self.context} tokens. Please shorten the prompt.",
                "messages" if messages else "prompt",
                "context_length_exceeded",
            )
        return tokens

    def apply_limits(
        self, choice: MockChoice, max_tokens: int | None, stops: list[str], prompt_tokens: int
    ) -> MockChoice:
        """What of it is said within all limits."""
        room = self.context - prompt_tokens
        return self.apply_stop_strings(
            self.apply_token_limit(choice, room if max_tokens is None else min(max_tokens, room)), stops
        )

    def apply_token_limit(self, choice: MockChoice, max_tokens: int) -> MockChoice:
        """At most so many tokens."""
        return truncate_to_limit(choice, max_tokens)

    def apply_stop_strings(self, choice: MockChoice, stops: list[str]) -> MockChoice:
        """Nothing from a stop string on."""
        return truncate_at_stop(choice, stops)

    # ---- what is said

    def choose_answer(self, request: MockChatRequest) -> MockChoice:
        """The answer to a chat: calls, or text."""
        reasoning = self.reasoning_tokens(request)
        if calls := tool_calls_for(request):
            return MockChoice(reasoning=reasoning, tool_calls=calls, finish_reason="tool_calls")
        return MockChoice(reasoning=reasoning, text=tokenize(self.answer_text(request)))

    def reasoning_tokens(self, request: MockChatRequest) -> tuple[str, ...]:
        """What comes before the answer."""
        return tokenize(choices.REASONING_TEXT) if (request.model or "").endswith(THINKING_SUFFIX) else ()

    def answer_text(self, request: MockChatRequest) -> str:
        """The text of an answer."""
        wanted = request.response_format
        if wanted is not None and wanted.type != "text":
            schema = (wanted.json_schema and wanted.json_schema.schema) or {"properties": {"answer": {}}}
            return json.dumps(SchemaSampler(schema, request.prompt, (self.text,)).sample(), ensure_ascii=False)
        results = request.tool_results
        return choices.tool_result_text(results) if results else self.text_for(request.prompt)

    def text_for(self, prompt: str) -> str:
        """The text that goes on after a prompt."""
        return choices.text_for(prompt, self.text)

    def complete_prompt(self, request: MockCompletionRequest, prompt: str) -> MockChoice:
        """The answer to a prompt of a completion."""
        return MockChoice(text=tokenize(self.text_for(prompt)), echo=tokenize(prompt) if request.echo else ())

    # ---- how it is said

    def render(
        self, endpoint: Endpoint, request: MockGenerationRequest, choices: list[MockChoice], prompt_tokens: int
    ) -> MockReply:
        """The reply that says it."""
        head = self.envelope(endpoint, request)
        events = [self.events(request, index, said, head) for index, said in enumerate(choices)]
        usage = self.usage(endpoint, choices, prompt_tokens)
        if request.stream:
            return self.stream(self.writer(endpoint, head, request), events, usage if request.includes_usage else None)
        return self.buffered(
            chat.encode_chat_reply if endpoint is Endpoint.CHAT else chat.encode_completions_reply,
            head,
            events,
            usage,
        )

    def envelope(self, endpoint: Endpoint, request: MockGenerationRequest) -> Envelope:
        """What is the same on each chunk."""
        name = f"{ID_PREFIX[endpoint]}ideal{next(self._reply_numbers)}"
        return Envelope(name, int(time.time()), request.model or "", "fp_ideal")

    def usage(self, endpoint: Endpoint, choices: list[MockChoice], prompt_tokens: int) -> Usage:
        """The tokens of all choices together."""
        spent = sum(said.generated_tokens for said in choices)
        thought = sum(len(said.reasoning) for said in choices)
        details = {
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
        return Usage(prompt_tokens, spent, prompt_tokens + spent, details if endpoint is Endpoint.CHAT else {})

    def writer(self, endpoint: Endpoint, envelope: Envelope, request: MockGenerationRequest) -> ChunkWriter:
        """Who writes the chunks."""
        kind = ChatWriter if endpoint is Endpoint.CHAT else CompletionsWriter
        return kind(envelope, usage_is_null=request.includes_usage)

    def stream(self, writer: DialectWriter, events: list[list[Event]], usage: Usage | None) -> MockReply:
        """A stream."""
        rows = list(interleave_choices(events))
        if usage is not None:
            rows.append([usage])
        return MockReply(tuple(stream_chunks(rows, writer, self.gap_s)), headers=dict(sse.HEADERS))

    def buffered(self, encode: ReplyEncoder, envelope: Envelope, events: list[list[Event]], usage: Usage) -> MockReply:
        """The same in one JSON object, after all its pauses."""
        rows = list(interleave_choices(events))
        reply = collect([event for row in rows for event in row] + [usage])
        data = encode(envelope, reply)
        after_s = self.gap_s * sum(map(has_token, rows))
        return MockReply((MockChunk(base64=data, after_s=after_s),), headers=dict(JSON_HEADERS), framing="length")

    def events(self, request: MockGenerationRequest, index: int, choice: MockChoice, envelope: Envelope) -> list[Event]:
        """The events of one choice."""
        events: list[Event] = [ChoiceStart(index), *(Reasoning(index, token) for token in choice.reasoning)]
        offset = 0
        for place, token in enumerate(choice.echo + choice.text):
            if likelihood := self.token_logprobs(request, token, offset, is_first=place == 0 and bool(choice.echo)):
                events.append(Logprobs(index, likelihood))
            events.append(Text(index, token))
            offset += len(token)
        for number, call in enumerate(choice.tool_calls):
            id = self.tool_call_id(envelope, index, number)
            events.append(ToolCall(index, number, id, call.name, {}, call.is_custom))
            events += [ToolArguments(index, number, piece, {}, call.is_custom) for piece in call.arguments]
        return [*events, Finish(index, choice.finish_reason, choice.stop_string)]

    def tool_call_id(self, envelope: Envelope, index: int, call_index: int) -> str:
        """The name of a call: no two have the same."""
        return f"call_{envelope.id.replace('-', '_').rpartition('_')[2]}_{index}_{call_index}"

    def token_logprobs(self, request: MockGenerationRequest, token: str, offset: int, *, is_first: bool) -> Json | None:
        """The log probabilities of a token, where they are asked for."""
        if isinstance(request, MockChatRequest) and request.logprobs:
            return choices.chat_logprobs(token, request.top_logprobs or 0)
        if isinstance(request, MockCompletionRequest) and request.logprobs is not None:
            return choices.completion_logprobs(token, offset, request.logprobs, is_first=is_first)
        return None
