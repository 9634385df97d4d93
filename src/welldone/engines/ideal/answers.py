"""Answers: what is said to a request, within which limits, and as which reply. Each decision has its own method."""

import json
import time
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from welldone.engines.ideal import likely, mind
from welldone.engines.ideal.calls import calls_for
from welldone.engines.ideal.messages import Answered
from welldone.engines.ideal.pieces import has_token, side_by_side, streamed
from welldone.engines.ideal.refusals import invalid
from welldone.engines.ideal.requests import Chat, Completion, Request
from welldone.engines.ideal.responses import Responses
from welldone.engines.ideal.said import Said, limited, stopped
from welldone.engines.ideal.samples import Sampler
from welldone.engines.ideal.tokens import count_tokens, tokens_of
from welldone.engines.scripts import JSON, Piece, Reply
from welldone.wire import sse
from welldone.wire.collect import Reply as Collected
from welldone.wire.collect import collect
from welldone.wire.dialects import chat, completions
from welldone.wire.dialects.chat import ChatWriter
from welldone.wire.dialects.completions import CompletionsWriter
from welldone.wire.dialects.dialect import Translated, Writer
from welldone.wire.dialects.messages import Messages as MessagesDialect
from welldone.wire.dialects.responses import Responses as ResponsesDialect
from welldone.wire.dialects.stream import StreamWriter
from welldone.wire.events import (
    Event,
    Finish,
    Json,
    Logprobs,
    Opening,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.head import ID_PREFIX, Endpoint, Head

THINKING = "-thinking"
"""The end of the name of a model that thinks before it answers."""
_MESSAGE_TOKENS = 4  # what templates put around a message

Whole: TypeAlias = Callable[[Head, Collected], bytes]


class Answers:
    """Right answers. `gap_s`: the pause before each token. `context`: how many tokens a prompt and its answer may have.

    `text` is what is said where a prompt asks for nothing in particular.
    """

    def __init__(self, *, text: str, gap_s: float, context: int) -> None:
        self.text = text
        self.gap_s = gap_s
        self.context = context
        self._numbers = count(1)

    def chat(self, request: Chat) -> Reply:
        """The reply to a chat."""
        prompt = self.count_chat(request)
        said = self.bounded(self.decide(request), request.most, request.stops, prompt)
        return self.speak(Endpoint.CHAT, request, [said] * (request.n or 1), prompt)

    def completions(self, request: Completion) -> Reply:
        """The reply to prompts that are to be continued. Choice `index` is of prompt `index // n`."""
        choices = []
        total = 0
        for prompt in request.prompts:
            counted = self.count_prompt([prompt], 0)
            total += counted
            said = self.bounded(self.go_on(request, prompt), request.most, request.stops, counted)
            choices += [said] * (request.n or 1)
        return self.speak(Endpoint.COMPLETIONS, request, choices, total)

    def responses(self, request: Responses) -> Reply:
        """The reply of /v1/responses."""
        dialect = ResponsesDialect(request.echo, is_summary=request.wants_summary, clock=time.time)
        return self.translate(Endpoint.RESPONSES, request.chat, dialect)

    def messages(self, request: Answered) -> Reply:
        """The reply of /v1/messages."""
        chat = request.chat
        return self.translate(Endpoint.MESSAGES, chat, MessagesDialect(stops=tuple(chat.stops)))

    def translate(self, endpoint: Endpoint, request: Chat, dialect: Translated) -> Reply:
        """What is said to a chat, in another dialect."""
        prompt = self.count_chat(request)
        said = self.bounded(self.decide(request), request.most, request.stops, prompt)
        head = self.head(endpoint, request)
        events, usage = [self.events(request, 0, said, head)], self.usage(Endpoint.CHAT, [said], prompt)
        if request.stream:
            return self.stream(dialect.writer(head, lambda: usage), events, usage)
        return self.whole(dialect.whole, head, events, usage)

    def count_chat(self, request: Chat) -> int:
        """The tokens of a chat. Raises `RefusedError` where no answer fits after it."""
        return self.count_prompt([message.text for message in request.messages], len(request.messages))

    def count_prompt(self, texts: list[str], messages: int) -> int:
        """The tokens of a prompt. Raises `RefusedError` where no answer fits after it."""
        tokens = count_tokens(texts, self.context) + messages * _MESSAGE_TOKENS
        if tokens >= self.context:
            raise invalid(
                f"This model's maximum context length is {self.context} tokens. Please shorten the prompt.",
                "messages" if messages else "prompt",
                "context_length_exceeded",
            )
        return tokens

    def bounded(self, said: Said, most: int | None, stops: list[str], prompt: int) -> Said:
        """What of it is said within all limits."""
        room = self.context - prompt
        return self.stop(self.limit(said, room if most is None else min(most, room)), stops)

    def limit(self, said: Said, most: int) -> Said:
        """At most so many tokens."""
        return limited(said, most)

    def stop(self, said: Said, stops: list[str]) -> Said:
        """Nothing from a stop string on."""
        return stopped(said, stops)

    # ---- what is said

    def decide(self, request: Chat) -> Said:
        """The answer to a chat: calls, or text."""
        reasoning = self.think(request)
        if calls := calls_for(request):
            return Said(reasoning=reasoning, calls=calls, reason="tool_calls")
        return Said(reasoning=reasoning, text=tokens_of(self.say(request)))

    def think(self, request: Chat) -> tuple[str, ...]:
        """What comes before the answer."""
        return tokens_of(mind.THOUGHT) if (request.model or "").endswith(THINKING) else ()

    def say(self, request: Chat) -> str:
        """The text of an answer."""
        wanted = request.response_format
        if wanted is not None and wanted.type != "text":
            schema = (wanted.json_schema and wanted.json_schema.schema) or {"properties": {"answer": {}}}
            return json.dumps(Sampler(schema, request.prompt, (self.text,)).sample(), ensure_ascii=False)
        results = request.results
        return mind.result_text(results) if results else self.text_for(request.prompt)

    def text_for(self, prompt: str) -> str:
        """The text that goes on after a prompt."""
        return mind.text_for(prompt, self.text)

    def go_on(self, request: Completion, prompt: str) -> Said:
        """The answer to a prompt of a completion."""
        return Said(text=tokens_of(self.text_for(prompt)), echo=tokens_of(prompt) if request.echo else ())

    # ---- how it is said

    def speak(self, endpoint: Endpoint, request: Request, choices: list[Said], prompt: int) -> Reply:
        """The reply that says it."""
        head = self.head(endpoint, request)
        events = [self.events(request, index, said, head) for index, said in enumerate(choices)]
        usage = self.usage(endpoint, choices, prompt)
        if request.stream:
            return self.stream(self.writer(endpoint, head, request), events, usage if request.wants_usage else None)
        return self.whole(chat.whole if endpoint is Endpoint.CHAT else completions.whole, head, events, usage)

    def head(self, endpoint: Endpoint, request: Request) -> Head:
        """What is the same on each chunk."""
        name = f"{ID_PREFIX[endpoint]}ideal{next(self._numbers)}"
        return Head(name, int(time.time()), request.model or "", "fp_ideal")

    def usage(self, endpoint: Endpoint, choices: list[Said], prompt: int) -> Usage:
        """The tokens of all choices together."""
        spent = sum(said.spent for said in choices)
        thought = sum(len(said.reasoning) for said in choices)
        details = {
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
        return Usage(prompt, spent, prompt + spent, details if endpoint is Endpoint.CHAT else {})

    def writer(self, endpoint: Endpoint, head: Head, request: Request) -> StreamWriter:
        """Who writes the chunks."""
        kind = ChatWriter if endpoint is Endpoint.CHAT else CompletionsWriter
        return kind(head, usage_is_null=request.wants_usage)

    def stream(self, writer: Writer, events: list[list[Event]], usage: Usage | None) -> Reply:
        """A stream."""
        rows = list(side_by_side(events))
        if usage is not None:
            rows.append([usage])
        return Reply(tuple(streamed(rows, writer, self.gap_s)), headers=dict(sse.HEADERS))

    def whole(self, write: Whole, head: Head, events: list[list[Event]], usage: Usage) -> Reply:
        """The same in one JSON object, after all its pauses."""
        rows = list(side_by_side(events))
        reply = collect([event for row in rows for event in row] + [usage])
        data = write(head, reply)
        after_s = self.gap_s * sum(map(has_token, rows))
        return Reply((Piece(base64=data, after_s=after_s),), headers=dict(JSON), framing="length")

    def events(self, request: Request, index: int, said: Said, head: Head) -> list[Event]:
        """The events of one choice."""
        events: list[Event] = [Opening(index), *(Reasoning(index, token) for token in said.reasoning)]
        offset = 0
        for place, token in enumerate(said.echo + said.text):
            if likelihood := self.likelihood(request, token, offset, is_first=place == 0 and bool(said.echo)):
                events.append(Logprobs(index, likelihood))
            events.append(Text(index, token))
            offset += len(token)
        for number, call in enumerate(said.calls):
            id = self.call_id(head, index, number)
            events.append(ToolCall(index, number, id, call.name, {}, call.is_custom))
            events += [ToolArguments(index, number, piece, {}, call.is_custom) for piece in call.arguments]
        return [*events, Finish(index, said.reason, said.stop)]

    def call_id(self, head: Head, index: int, number: int) -> str:
        """The name of a call: no two have the same."""
        return f"call_{head.id.replace('-', '_').rpartition('_')[2]}_{index}_{number}"

    def likelihood(self, request: Request, token: str, offset: int, *, is_first: bool) -> Json | None:
        """The log probabilities of a token, where they are asked for."""
        if isinstance(request, Chat) and request.logprobs:
            return likely.chat_logprobs(token, request.top_logprobs or 0)
        if isinstance(request, Completion) and request.logprobs is not None:
            return likely.completion_logprobs(token, offset, request.logprobs, is_first=is_first)
        return None
