"""The server around the answers: who may ask, which path answers, and what is told of itself."""

import hmac
import re
from collections.abc import Callable
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from welldone.mock.reference.anthropic import MockCountTokensRequest, MockMessagesRequest
from welldone.mock.reference.responder import MockResponder
from welldone.mock.reference.responses import MockResponsesRequest
from welldone.mock.reference.schemas import (
    MockApiError,
    MockChatRequest,
    MockCompletionRequest,
    MockRequestBody,
    invalid_request,
    not_found,
    parse_request,
    render_error,
)
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.protocol.events import Json

DEFAULT_TEXT = "Hello! How can I help you today?"
RUNNING_GAUGE = "llamacpp:requests_processing"
"""How many requests are being answered, under a name that llama.cpp has made known."""
_ALLOWED_METHODS = "GET, HEAD, POST, OPTIONS"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")  # the name of a header

MockHandler: TypeAlias = Callable[[MockHttpRequest], MockReply]
RequestBodyType = TypeVar("RequestBodyType", bound=MockRequestBody)


class ReferenceServer(MockResponder):
    """Answers requests. Its `answer` is the `choose` of a `Scripted` that lets it answer all of them (`for_all`)."""

    def __init__(
        self,
        *,
        text: str = DEFAULT_TEXT,
        gap_s: float = 0.0,
        key: str | None = None,
        models: tuple[str, ...] = ("ideal",),
        context: int = 4096,
    ) -> None:
        super().__init__(text=text, gap_s=gap_s, context=context)
        self.models = models
        self._key = key
        self._running: list[MockHttpRequest] = []

    # ---- HTTP

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        """The reply to any request."""
        try:
            reply = self.route(http_request)
        except MockApiError as error:
            reply = (
                render_error(error, is_anthropic=True) if _is_anthropic_path(http_request) else self.error_reply(error)
            )
        reply = msgspec.structs.replace(reply, headers=reply.headers | self.cors_headers())
        return _without_body(reply) if http_request.method == "HEAD" else reply

    def route(self, http_request: MockHttpRequest) -> MockReply:
        """The reply of a path. Raises `RefusedError`."""
        if http_request.method == "OPTIONS":
            return self.preflight(http_request)
        path = unquote(http_request.path.partition("?")[0])
        if path != "/health":
            self.check_key(http_request)
        method, answerer = self.find_route(path)
        if http_request.method != method and (http_request.method, method) != ("HEAD", "GET"):
            raise self.method_not_allowed(http_request.method, method)
        reply = answerer(http_request)
        if method == "POST":
            self.running_count()  # forgets those that have ended
            self._running.append(http_request)
        return reply

    def find_route(self, path: str) -> tuple[str, MockHandler]:
        """The method that a path takes, and who answers there."""
        routes: dict[str, tuple[str, MockHandler]] = {
            "/v1/chat/completions": ("POST", lambda seen: self.chat(self.parse(seen, MockChatRequest))),
            "/v1/completions": ("POST", lambda seen: self.completions(self.parse(seen, MockCompletionRequest))),
            "/v1/responses": ("POST", lambda seen: self.responses(self.parse(seen, MockResponsesRequest))),
            "/v1/messages": ("POST", lambda seen: self.messages(self.parse(seen, MockMessagesRequest))),
            "/v1/messages/count_tokens": (
                "POST",
                lambda seen: self.token_count(self.parse(seen, MockCountTokensRequest)),
            ),
            "/v1/models": ("GET", self.list_models),
            "/metrics": ("GET", self.metrics),
            "/health": ("GET", self.health),
        }
        if path in routes:
            return routes[path]
        if path.startswith("/v1/models/"):
            return "GET", self.show_model
        raise not_found(f"There is no {path[:100]!r} here.", code="unknown_url")

    def check_key(self, http_request: MockHttpRequest) -> None:
        """Raises `RefusedError` for who has no right to ask."""
        if self._key is None:
            return
        said = http_request.headers.get("authorization", "")
        if _is_anthropic_path(http_request) and "x-api-key" in http_request.headers:
            said = f"Bearer {http_request.headers['x-api-key']}"
        if not hmac.compare_digest(said.encode("latin-1", "replace"), f"Bearer {self._key}".encode()):
            raise MockApiError(
                401,
                "Incorrect API key provided." if said else "You didn't provide an API key.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def method_not_allowed(self, method: str, expected: str) -> MockApiError:
        """The error for a method that a path does not take."""
        allowed = f"{expected}, HEAD, OPTIONS" if expected == "GET" else f"{expected}, OPTIONS"
        return MockApiError(405, f"Not allowed to {method[:20]} here; use {expected}.", headers={"Allow": allowed})

    def error_reply(self, error: MockApiError) -> MockReply:
        """The reply to what cannot be answered."""
        return render_error(error)

    def cors_headers(self) -> dict[str, str]:
        """What lets pages of any origin read a reply."""
        return {"Access-Control-Allow-Origin": "*"}

    def preflight(self, http_request: MockHttpRequest) -> MockReply:
        """What a browser asks before it sends what a page wants to send."""
        asked = [name.strip() for name in http_request.headers.get("access-control-request-headers", "").split(",")]
        headers = {
            "Allow": _ALLOWED_METHODS,
            "Access-Control-Allow-Methods": _ALLOWED_METHODS,
            "Access-Control-Allow-Headers": ", ".join(name for name in asked if _HEADER_NAME.fullmatch(name)),
            "Access-Control-Max-Age": "600",
        }
        return MockReply((), 204, {name: value for name, value in headers.items() if value}, framing="length")

    def parse(self, http_request: MockHttpRequest, body_type: type[RequestBodyType]) -> RequestBodyType:
        """The request. Raises `RefusedError` for one that is wrong."""
        if not http_request.is_utf8:
            raise invalid_request("We could not parse the JSON body of your request: it is no UTF-8.")
        request = parse_request(http_request.body, body_type)
        request.model = self.resolve_model(request.model)
        return request

    def token_count(self, request: MockCountTokensRequest) -> MockReply:
        """How many tokens a request would have."""
        return json_reply({"input_tokens": self.count_chat(request.as_chat)})

    # ---- what is told of the server

    def health(self, http_request: MockHttpRequest) -> MockReply:
        """That all is well."""
        return json_reply({"status": "ok"})

    def metrics(self, http_request: MockHttpRequest) -> MockReply:
        """How much is being answered."""
        said = f"# HELP {RUNNING_GAUGE} Requests that are being answered.\n# TYPE {RUNNING_GAUGE} gauge\n{RUNNING_GAUGE} {self.running_count()}\n"
        return MockReply(
            (MockChunk(said),), 200, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}, framing="length"
        )

    def running_count(self) -> int:
        """How many requests have been answered neither to their end nor until the asker left."""
        self._running = [seen for seen in self._running if seen.end == "running"]
        return len(self._running)

    def list_models(self, http_request: MockHttpRequest) -> MockReply:
        """All models."""
        return json_reply({"object": "list", "data": [self.model_object(name) for name in self.models]})

    def show_model(self, http_request: MockHttpRequest) -> MockReply:
        """One model."""
        name = unquote(http_request.path.partition("?")[0]).removeprefix("/v1/models/")
        return json_reply(self.model_object(self.resolve_model(name)))

    def model_object(self, name: str) -> Json:
        """A model as it is listed."""
        return {"id": name, "object": "model", "created": 0, "owned_by": "welldone", "max_model_len": self.context}

    def resolve_model(self, name: str | None) -> str:
        """The model of this name, or the first one where none is named. Raises `RefusedError` where there is none."""
        if name is None:
            return self.models[0]
        if name not in self.models:
            raise not_found(f"The model '{name[:100]}' does not exist.", "model", "model_not_found")
        return name


def _is_anthropic_path(http_request: MockHttpRequest) -> bool:
    return http_request.path.startswith("/v1/messages")


def _without_body(reply: MockReply) -> MockReply:
    headers = reply.headers | {"Content-Length": str(len(reply.body))}
    return msgspec.structs.replace(reply, pieces=(), headers=headers, framing="length")
