"""The server: who may ask, which path answers, and a reply out of what is said. Each decision has its own method."""

import hmac
import json
import re
import time
from collections.abc import Callable
from itertools import count
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from welldone.engines.ideal import likely, mind
from welldone.engines.ideal.calls import calls_for
from welldone.engines.ideal.pieces import has_token, side_by_side, streamed
from welldone.engines.ideal.refusals import RefusedError, invalid, not_found, refusal
from welldone.engines.ideal.requests import Chat, Completion, Request, read
from welldone.engines.ideal.said import Said, limited, stopped
from welldone.engines.ideal.samples import Sampler
from welldone.engines.ideal.tokens import count_tokens, tokens_of
from welldone.engines.scripted import Seen
from welldone.engines.scripts import JSON, Piece, Reply, json_reply
from welldone.wire import sse
from welldone.wire.collect import collect
from welldone.wire.dialects import chat, completions
from welldone.wire.dialects.chat import ChatWriter
from welldone.wire.dialects.completions import CompletionsWriter
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
from welldone.wire.head import Endpoint, Head

TEXT = "Hello! How can I help you today?"
THINKING = "-thinking"
"""The end of the name of a model that thinks before it answers."""
GAUGE = "llamacpp:requests_processing"
"""How many requests are being answered, under a name that llama.cpp has made known."""
_MESSAGE_TOKENS = 4  # what templates put around a message
_METHODS = "GET, HEAD, POST, OPTIONS"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")  # the name of a header
_PREFIX = {Endpoint.CHAT: "chatcmpl", Endpoint.COMPLETIONS: "cmpl"}

Answerer: TypeAlias = Callable[[Seen], Reply]
RequestKind = TypeVar("RequestKind", bound=Request)


class Ideal:
    """Answers requests. Its `answer` is the `choose` of `Scripted`, which must be `for_all`.

    `gap_s`: the pause before each token. `context`: how many tokens a prompt and its answer may have together.
    """

    def __init__(
        self,
        *,
        text: str = TEXT,
        gap_s: float = 0.0,
        key: str | None = None,
        models: tuple[str, ...] = ("ideal",),
        context: int = 4096,
    ) -> None:
        self.text = text
        self.gap_s = gap_s
        self.models = models
        self.context = context
        self._key = key
        self._numbers = count(1)
        self._running: list[Seen] = []

    # ---- HTTP

    def answer(self, seen: Seen) -> Reply:
        """The reply to any request."""
        try:
            reply = self.route(seen)
        except RefusedError as error:
            reply = self.refuse(error)
        reply = msgspec.structs.replace(reply, headers=reply.headers | self.cors())
        return _without_body(reply) if seen.method == "HEAD" else reply

    def route(self, seen: Seen) -> Reply:
        """The reply of a path. Raises `RefusedError`."""
        if seen.method == "OPTIONS":
            return self.preflight(seen)
        path = unquote(seen.path.partition("?")[0])
        if path != "/health":
            self.check_key(seen)
        method, answerer = self.find(path)
        if seen.method != method and (seen.method, method) != ("HEAD", "GET"):
            raise self.wrong_method(seen.method, method)
        return answerer(seen)

    def find(self, path: str) -> tuple[str, Answerer]:
        """The method that a path takes, and who answers there."""
        routes: dict[str, tuple[str, Answerer]] = {
            "/v1/chat/completions": ("POST", self.chat),
            "/v1/completions": ("POST", self.completions),
            "/v1/models": ("GET", self.list_models),
            "/metrics": ("GET", self.metrics),
            "/health": ("GET", self.health),
        }
        if path in routes:
            return routes[path]
        if path.startswith("/v1/models/"):
            return "GET", self.show_model
        raise not_found(f"There is no {path[:100]!r} here.", code="unknown_url")

    def check_key(self, seen: Seen) -> None:
        """Raises `RefusedError` for who has no right to ask."""
        if self._key is None:
            return
        said = seen.headers.get("authorization", "")
        if not hmac.compare_digest(said.encode(), f"Bearer {self._key}".encode()):
            raise RefusedError(
                401,
                "Incorrect API key provided." if said else "You didn't provide an API key.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def wrong_method(self, method: str, wanted: str) -> RefusedError:
        """The error for a method that a path does not take."""
        allowed = f"{wanted}, HEAD, OPTIONS" if wanted == "GET" else f"{wanted}, OPTIONS"
        return RefusedError(405, f"Not allowed to {method[:20]} here; use {wanted}.", headers={"Allow": allowed})

    def refuse(self, error: RefusedError) -> Reply:
        """The reply to what cannot be answered."""
        return refusal(error)

    def cors(self) -> dict[str, str]:
        """What lets pages of any origin read a reply."""
        return {"Access-Control-Allow-Origin": "*"}

    def preflight(self, seen: Seen) -> Reply:
        """What a browser asks before it sends what a page wants to send."""
        asked = [name.strip() for name in seen.headers.get("access-control-request-headers", "").split(",")]
        headers = {
            "Allow": _METHODS,
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": ", ".join(name for name in asked if _TOKEN.fullmatch(name)),
            "Access-Control-Max-Age": "600",
        }
        return Reply((), 204, {name: value for name, value in headers.items() if value}, framing="length")

    # ---- what is told of the server

    def health(self, seen: Seen) -> Reply:
        """That all is well."""
        return json_reply({"status": "ok"})

    def metrics(self, seen: Seen) -> Reply:
        """How much is being answered."""
        said = f"# HELP {GAUGE} Requests that are being answered.\n# TYPE {GAUGE} gauge\n{GAUGE} {self.running()}\n"
        return Reply(
            (Piece(said),), 200, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}, framing="length"
        )

    def running(self) -> int:
        """How many requests have been answered neither to their end nor until the asker left."""
        self._running = [seen for seen in self._running if seen.end == "running"]
        return len(self._running)

    def list_models(self, seen: Seen) -> Reply:
        """All models."""
        return json_reply({"object": "list", "data": [self.model_object(name) for name in self.models]})

    def show_model(self, seen: Seen) -> Reply:
        """One model."""
        name = unquote(seen.path.partition("?")[0]).removeprefix("/v1/models/")
        return json_reply(self.model_object(self.known(name)))

    def model_object(self, name: str) -> Json:
        """A model as it is listed."""
        return {"id": name, "object": "model", "created": 0, "owned_by": "welldone", "max_model_len": self.context}

    def known(self, name: str | None) -> str:
        """The model of this name, or the first one where none is named. Raises `RefusedError` where there is none."""
        if name is None:
            return self.models[0]
        if name not in self.models:
            raise not_found(f"The model '{name[:100]}' does not exist.", "model", "model_not_found")
        return name

    # ---- answers

    def chat(self, seen: Seen) -> Reply:
        """The reply to a chat."""
        request = self.read(seen, Chat)
        prompt = self.count_prompt([message.text for message in request.messages], len(request.messages))
        said = self.bounded(self.decide(request), request.most, request.stops, prompt)
        return self.speak(seen, Endpoint.CHAT, request, [said] * (request.n or 1), prompt)

    def completions(self, seen: Seen) -> Reply:
        """The reply to prompts that are to be continued. Choice `index` is of prompt `index // n`."""
        request = self.read(seen, Completion)
        choices = []
        total = 0
        for prompt in request.prompts:
            counted = self.count_prompt([prompt], 0)
            total += counted
            said = self.bounded(self.go_on(request, prompt), request.most, request.stops, counted)
            choices += [said] * (request.n or 1)
        return self.speak(seen, Endpoint.COMPLETIONS, request, choices, total)

    def read(self, seen: Seen, kind: type[RequestKind]) -> RequestKind:
        """The request. Raises `RefusedError` for one that is wrong."""
        if not seen.is_utf8:
            raise invalid("We could not parse the JSON body of your request: it is no UTF-8.")
        request = read(seen.body, kind)
        request.model = self.known(request.model)
        return request

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
        return mind.result_text(results) if results else mind.text_for(request.prompt, self.text)

    def go_on(self, request: Completion, prompt: str) -> Said:
        """The answer to a prompt of a completion."""
        return Said(text=tokens_of(mind.text_for(prompt, self.text)), echo=tokens_of(prompt) if request.echo else ())

    # ---- how it is said

    def speak(self, seen: Seen, endpoint: Endpoint, request: Request, choices: list[Said], prompt: int) -> Reply:
        """The reply that says it."""
        self.running()  # forgets those that have ended
        self._running.append(seen)
        head = self.head(endpoint, request)
        events = [self.events(request, index, said, head) for index, said in enumerate(choices)]
        usage = self.usage(endpoint, choices, prompt)
        if request.stream:
            return self.stream(self.writer(endpoint, head, request), events, usage if request.wants_usage else None)
        return self.whole(endpoint, head, events, usage)

    def head(self, endpoint: Endpoint, request: Request) -> Head:
        """What is the same on each chunk."""
        name = f"{_PREFIX[endpoint]}-ideal{next(self._numbers)}"
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

    def stream(self, writer: StreamWriter, events: list[list[Event]], usage: Usage | None) -> Reply:
        """A stream."""
        rows = list(side_by_side(events))
        if usage is not None:
            rows.append([usage])
        return Reply(tuple(streamed(rows, writer, self.gap_s)), headers=dict(sse.HEADERS))

    def whole(self, endpoint: Endpoint, head: Head, events: list[list[Event]], usage: Usage) -> Reply:
        """The same in one JSON object, after all its pauses."""
        rows = list(side_by_side(events))
        reply = collect([event for row in rows for event in row] + [usage])
        data = chat.whole(head, reply) if endpoint is Endpoint.CHAT else completions.whole(head, reply)
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
            events.append(ToolCall(index, number, self.call_id(head, index, number), call.name))
            events += [ToolArguments(index, number, piece) for piece in call.arguments]
        return [*events, Finish(index, said.reason)]

    def call_id(self, head: Head, index: int, number: int) -> str:
        """The name of a call: no two have the same."""
        return f"call_{head.id.rpartition('-')[2]}_{index}_{number}"

    def likelihood(self, request: Request, token: str, offset: int, *, is_first: bool) -> Json | None:
        """The log probabilities of a token, where they are asked for."""
        if isinstance(request, Chat) and request.logprobs:
            return likely.chat_logprobs(token, request.top_logprobs or 0)
        if isinstance(request, Completion) and request.logprobs is not None:
            return likely.completion_logprobs(token, offset, request.logprobs, is_first=is_first)
        return None


def _without_body(reply: Reply) -> Reply:
    headers = reply.headers | {"Content-Length": str(len(reply.body))}
    return msgspec.structs.replace(reply, pieces=(), headers=headers, framing="length")
