"""Reference server: routing, authentication, CORS, models and metrics around `MockResponder`.

Every reply is correct. Subclasses and `welldone.mock.violations` override single methods to violate a rule.
"""

import hmac
import re
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec

from welldone.mock.reference import schemas
from welldone.mock.reference.responder import MockResponder
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.socket import accept_socket, is_handshake
from welldone.protocol.dialects.gemini.objects import KEY_HEADER
from welldone.protocol.envelope import ID_PREFIX, Endpoint
from welldone.protocol.events import Json
from welldone.schemas.anthropic import AnthropicRequest, AnthropicTokensRequest
from welldone.schemas.gemini import camel_case_names

DEFAULT_TEXT = "Hello! How can I help you today?"
RUNNING_GAUGE = "llamacpp:requests_processing"
"""Gauge of requests in progress; the name is llama.cpp's."""
CORS_HEADERS = {"Access-Control-Allow-Origin": "*"}
"""They let pages of any origin read a reply."""
_SOCKET_PATH = "/v1/responses"
_ALLOWED_METHODS = "GET, HEAD, POST, OPTIONS"
GEMINI_PATH = re.compile(r"/v1(?:beta)?/models/(.+):(generateContent|streamGenerateContent|countTokens)")
"""Paths of Google's API: the model and the method."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")

MockHandler: TypeAlias = Callable[[MockHttpRequest], MockReply]
RequestBodyType = TypeVar("RequestBodyType", bound=schemas.MockRequestBody | AnthropicTokensRequest)


class ReferenceServer(MockResponder):
    """Answers all requests. Use `answer` as the handler of a `MockServer` with `handles_all`."""

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

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        """Answer any request."""
        try:
            reply = self._route(http_request)
        except schemas.MockApiError as error:
            is_google = _is_google_path(http_request)
            reply = schemas.render_error(error, is_anthropic=_is_anthropic_path(http_request), is_google=is_google)
        reply = msgspec.structs.replace(reply, headers=reply.headers | CORS_HEADERS)
        if http_request.method != "HEAD":
            return reply
        headers = reply.headers | {"Content-Length": str(len(reply.body))}
        return msgspec.structs.replace(reply, pieces=(), headers=headers, framing="length")

    def _route(self, http_request: MockHttpRequest) -> MockReply:
        """Answer a request by its path and method. Raises `MockApiError`."""
        if http_request.method == "OPTIONS":
            return self._preflight(http_request)
        path = unquote(http_request.path.partition("?")[0])
        if path != "/health":
            self._check_key(http_request)
        method, handler = self._find_route(path)
        if path == _SOCKET_PATH and is_handshake(http_request.headers):
            method, handler = http_request.method, self._socket
        if http_request.method != method and (http_request.method, method) != ("HEAD", "GET"):
            allowed = f"{method}, HEAD, OPTIONS" if method == "GET" else f"{method}, OPTIONS"
            message = f"The method {http_request.method[:20]} is not allowed here; use {method}."
            raise schemas.MockApiError(405, message, headers={"Allow": allowed})
        reply = handler(http_request)
        if method == "POST":
            self.running_count()  # removes requests that have ended
            self._running.append(http_request)
        return reply

    def _find_route(self, path: str) -> tuple[str, MockHandler]:
        """Return the method and the handler of a path. Raises `MockApiError` for an unknown path."""
        posts: dict[str, MockHandler] = {
            "/v1/chat/completions": lambda request: self.chat(self.parse(request, schemas.MockChatRequest)),
            "/v1/completions": lambda request: self.completions(self.parse(request, schemas.MockCompletionRequest)),
            "/v1/responses": lambda request: self.responses(self.parse(request, schemas.MockResponsesRequest)),
            "/v1/responses/compact": lambda request: self.compact(self.parse(request, schemas.MockResponsesRequest)),
            "/v1/messages": lambda request: self.messages(self.parse(request, AnthropicRequest)),
            "/v1/messages/count_tokens": self._count_tokens,
        }
        gets: dict[str, MockHandler] = {
            "/v1/models": lambda _: json_reply({"object": "list", "data": [*map(self._model_object, self.models)]}),
            "/metrics": self.metrics,
            "/health": lambda _: json_reply({"status": "ok"}),
        }
        if path in posts:
            return "POST", posts[path]
        if (found := GEMINI_PATH.fullmatch(path)) is not None:
            return "POST", lambda request: self._answer_gemini(request, found[1], found[2])
        path = path.replace("/v1beta/models", "/v1/models", 1)
        if path.startswith("/v1/models/"):
            name = path.removeprefix("/v1/models/")
            return "GET", lambda _: json_reply(self._model_object(self.resolve_model(name)))
        if path in gets:
            return "GET", gets[path]
        raise schemas.MockApiError(404, f"Unknown path {path[:100]!r}.", code="unknown_url")

    def _check_key(self, http_request: MockHttpRequest) -> None:
        """Raise `MockApiError` unless the request has the key."""
        if self._key is None:
            return
        authorization = http_request.headers.get("authorization", "")
        name = KEY_HEADER if _is_google_path(http_request) else "x-api-key"
        if name in http_request.headers and (name == KEY_HEADER or _is_anthropic_path(http_request)):
            authorization = f"Bearer {http_request.headers[name]}"
        if not hmac.compare_digest(authorization.encode("latin-1", "replace"), f"Bearer {self._key}".encode()):
            message = "Incorrect API key provided." if authorization else "You didn't provide an API key."
            headers = {"WWW-Authenticate": "Bearer"}
            raise schemas.MockApiError(401, message, code="invalid_api_key", headers=headers)

    def _preflight(self, http_request: MockHttpRequest) -> MockReply:
        """Answer a CORS preflight request: all requested headers are allowed."""
        names = [name.strip() for name in http_request.headers.get("access-control-request-headers", "").split(",")]
        headers = {
            "Allow": _ALLOWED_METHODS,
            "Access-Control-Allow-Methods": _ALLOWED_METHODS,
            "Access-Control-Allow-Headers": ", ".join(name for name in names if _HEADER_NAME.fullmatch(name)),
            "Access-Control-Max-Age": "600",
        }
        return MockReply((), 204, {name: value for name, value in headers.items() if value}, framing="length")

    def _answer_gemini(self, http_request: MockHttpRequest, model: str, method: str) -> MockReply:
        try:
            body = camel_case_names(self._json_body(http_request))
        except ValueError as error:
            raise schemas.invalid_request(f"Invalid '{error}': the field is given twice.", str(error)) from None
        model = self.resolve_model(model)
        if method == "countTokens":
            return json_reply({"totalTokens": self.count_chat(schemas.gemini_tokens(body, model))})
        is_stream = method == "streamGenerateContent"
        is_array = is_stream and parse_qs(http_request.path.partition("?")[2]).get("alt") != ["sse"]
        return self.gemini(body, model, is_stream=is_stream, is_array=is_array)

    def _json_body(self, http_request: MockHttpRequest) -> Json:
        error = "We could not parse the JSON body of your request"
        if not http_request.is_utf8:
            raise schemas.invalid_request(f"{error}: it is not UTF-8.")
        return _decode_object(http_request.body, f"{error}.")

    def parse(self, http_request: MockHttpRequest, body_type: type[RequestBodyType]) -> RequestBodyType:
        """Parse and validate the body of a request. Raises `MockApiError`."""
        request = schemas.convert(self._json_body(http_request), body_type)
        if isinstance(request, schemas.MockRequestBody):
            request.check()
        request.model = self.resolve_model(request.model)
        return request

    def _socket(self, http_request: MockHttpRequest) -> MockReply:
        """Answer the handshake of a WebSocket, or one of its messages: the events of the reply are sent as messages."""
        if http_request.method == "GET":
            return accept_socket(http_request.headers)
        event = _decode_object(http_request.body, "The message is not a JSON object.")
        if event.pop("type", None) != "response.create":
            raise schemas.invalid_request("Invalid 'type': it must be 'response.create'.", "type", "invalid_value")
        previous = event.get("previous_response_id")
        if isinstance(previous, str) and previous.startswith(f"{ID_PREFIX[Endpoint.RESPONSES]}ideal"):
            del event["previous_response_id"]  # a response of this server: its text does not depend on it
        body = msgspec.json.encode({"stream": True} | event).decode()
        return self.responses(
            self.parse(msgspec.structs.replace(http_request, body=body), schemas.MockResponsesRequest)
        )

    def _count_tokens(self, http_request: MockHttpRequest) -> MockReply:
        request = schemas.anthropic_to_chat(self.parse(http_request, AnthropicTokensRequest))
        return json_reply({"input_tokens": self.count_chat(request)})

    def metrics(self, http_request: MockHttpRequest) -> MockReply:
        """Answer /metrics with the gauge of requests in progress."""
        help_lines = f"# HELP {RUNNING_GAUGE} Requests in progress.\n# TYPE {RUNNING_GAUGE} gauge\n"
        chunk = MockChunk(f"{help_lines}{RUNNING_GAUGE} {self.running_count()}\n")
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return MockReply((chunk,), 200, headers, framing="length")

    def running_count(self) -> int:
        """Return the number of requests in progress."""
        self._running = [request for request in self._running if request.end == "running"]
        return len(self._running)

    def _model_object(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": 0, "owned_by": "welldone", "max_model_len": self.context}

    def resolve_model(self, name: str | None) -> str:
        """Return the model name, by default the first one. Raises `MockApiError` for an unknown model."""
        if name is None:
            return self.models[0]
        if name not in self.models:
            raise schemas.MockApiError(404, f"The model '{name[:100]}' does not exist.", "model", "model_not_found")
        return name


def _is_anthropic_path(http_request: MockHttpRequest) -> bool:
    return http_request.path.startswith("/v1/messages")


def _is_google_path(http_request: MockHttpRequest) -> bool:
    path = http_request.path.partition("?")[0]
    return path.startswith("/v1beta/") or GEMINI_PATH.fullmatch(unquote(path)) is not None


def _decode_object(body: str, message: str) -> Json:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise schemas.invalid_request(message) from None
