"""Reference server: routing, authentication, CORS, models and metrics around `MockResponder`.

Every reply is correct. Subclasses and `welldone.mock.violations` override single methods to violate a rule.
"""

import hmac
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import parse_qs, unquote

import msgspec

from welldone.core.events import Json
from welldone.core.json_budget import run_to_completion
from welldone.dialects.gemini.objects import KEY_HEADER
from welldone.dialects.gemini.writer import GeminiArrayFormat, GeminiFormat
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.objects import ID_PREFIX, responses_usage_object
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.gateway.errors import ApiError, ErrorFormat, invalid_request
from welldone.mock.reference import schemas
from welldone.mock.reference.responder import MockResponder
from welldone.mock.reference.schemas import MockChatRequest
from welldone.mock.script import MockChunk, MockReply, accept_socket, is_handshake, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.fields import read_body
from welldone.server.requests.gemini import counted_request, gemini_to_chat, read_gemini_body
from welldone.server.requests.response_items import encode_summary, read_input_items
from welldone.server.requests.responses import responses_to_chat

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


def render_error(error: ApiError, error_format: ErrorFormat = ErrorFormat.OPENAI) -> MockReply:
    """Return the reply for an error."""
    reply = json_reply(msgspec.Raw(error.body(error_format, "req_ideal")), error.status)
    return msgspec.structs.replace(reply, headers=reply.headers | error.headers)


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
        except ApiError as error:
            is_google, is_anthropic = _is_google_path(http_request), _is_anthropic_path(http_request)
            error_format = ErrorFormat.ANTHROPIC if is_anthropic else ErrorFormat.OPENAI
            reply = render_error(error, ErrorFormat.GEMINI if is_google else error_format)
        reply = msgspec.structs.replace(reply, headers=reply.headers | CORS_HEADERS)
        if http_request.method != "HEAD":
            return reply
        headers = reply.headers | {"Content-Length": str(len(reply.body))}
        return msgspec.structs.replace(reply, pieces=(), headers=headers, framing="length")

    def _route(self, http_request: MockHttpRequest) -> MockReply:
        """Answer a request by its path and method. Raises `ApiError`."""
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
            raise ApiError(405, message, headers={"Allow": allowed})
        reply = handler(http_request)
        if method == "POST":
            self.running_count()  # removes requests that have ended
            self._running.append(http_request)
        return reply

    def _find_route(self, path: str) -> tuple[str, MockHandler]:
        """Return the method and the handler of a path. Raises `ApiError` for an unknown path."""
        posts: dict[str, MockHandler] = {
            "/v1/chat/completions": lambda request: self.chat(self._read_chat(self._json_body(request))),
            "/v1/completions": self._complete,
            "/v1/responses": lambda request: self._respond(self._json_body(request)),
            "/v1/responses/compact": self._compact,
            "/v1/messages": self._answer_messages,
            "/v1/messages/count_tokens": self._count_tokens,
        }
        gets: dict[str, MockHandler] = {
            "/v1/models": lambda _: json_reply({"object": "list", "data": [*map(self._model_object, self.models)]}),
            "/metrics": self.metrics,
            "/health": lambda _: json_reply({"status": "ok"}),
        }
        if path in posts:
            return "POST", posts[path]
        if (match := GEMINI_PATH.fullmatch(path)) is not None:
            return "POST", lambda request: self._answer_gemini(request, match[1], match[2])
        path = path.replace("/v1beta/models", "/v1/models", 1)
        if path.startswith("/v1/models/"):
            name = path.removeprefix("/v1/models/")
            return "GET", lambda _: json_reply(self._model_object(self.resolve_model(name)))
        if path in gets:
            return "GET", gets[path]
        raise ApiError(404, f"Unknown path {path[:100]!r}.", code="unknown_url")

    def _check_key(self, http_request: MockHttpRequest) -> None:
        """Raise `ApiError` unless the request has the key."""
        if self._key is None:
            return
        authorization = http_request.headers.get("authorization", "")
        name = KEY_HEADER if _is_google_path(http_request) else "x-api-key"
        if name in http_request.headers and (name == KEY_HEADER or _is_anthropic_path(http_request)):
            authorization = f"Bearer {http_request.headers[name]}"
        if not hmac.compare_digest(authorization.encode("latin-1", "replace"), f"Bearer {self._key}".encode()):
            message = "Incorrect API key provided." if authorization else "You didn't provide an API key."
            headers = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, message, code="invalid_api_key", headers=headers)

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

    def _read_chat(self, body: Json, param_names: Mapping[str, str] | None = None) -> MockChatRequest:
        request = schemas.read_chat(body, param_names)
        request.model = self.resolve_model(request.model)
        return request

    def _complete(self, http_request: MockHttpRequest) -> MockReply:
        request = schemas.read_completion(self._json_body(http_request))
        request.model = self.resolve_model(request.model)
        return self.completions(request)

    def _translate_responses(self, body: Json) -> tuple[MockChatRequest, ResponsesFormat]:
        previous = body.get("previous_response_id")
        if previous is not None:
            message = f"Previous response with id '{str(previous)[:100]}' not found."
            raise invalid_request(message, param="previous_response_id", code="previous_response_not_found")
        items = run_to_completion(read_input_items(body, lambda _: None, 0))
        translation = responses_to_chat(body, [], items, unknown_tools="reject", allows_custom_tools=True)
        dialect = ResponsesFormat(translation.echo, is_summary=translation.wants_summary, clock=time.time)
        return self._read_chat(translation.chat, translation.param_names), dialect

    def _respond(self, body: Json) -> MockReply:
        request, dialect = self._translate_responses(body)
        return self.chat(request, dialect)

    def _compact(self, http_request: MockHttpRequest) -> MockReply:
        request, dialect = self._translate_responses(self._json_body(http_request))
        usage = self.usage(dialect.endpoint, [], self.count_chat(request))
        number = next(self.reply_numbers)
        content = encode_summary("The user said something.")
        item = {"id": f"cmp_ideal{number}", "type": "compaction", "encrypted_content": content}
        head = {
            "id": f"{ID_PREFIX}ideal{number}",
            "object": "response.compaction",
            "created_at": int(time.time()),
        }
        return json_reply({**head, "output": [item], "usage": responses_usage_object(usage)})

    def _translate_messages(self, http_request: MockHttpRequest, *, is_count_only: bool = False) -> MockChatRequest:
        body = self._json_body(http_request)
        translation = anthropic_to_chat(body, "llamacpp", ignores_unknown_tools=True, is_count_only=is_count_only)
        return self._read_chat(translation.chat, translation.param_names)

    def _answer_messages(self, http_request: MockHttpRequest) -> MockReply:
        request = self._translate_messages(http_request)
        dialect = MessagesFormat(stop_sequences=tuple(schemas.stop_strings(request)))
        return self.chat(request, dialect)

    def _count_tokens(self, http_request: MockHttpRequest) -> MockReply:
        request = self._translate_messages(http_request, is_count_only=True)
        return json_reply({"input_tokens": self.count_chat(request)})

    def _answer_gemini(self, http_request: MockHttpRequest, model: str, method: str) -> MockReply:
        body = read_gemini_body(self._json_body(http_request))
        is_count, is_stream = method == "countTokens", method == "streamGenerateContent"
        if is_count:
            body = counted_request(body)
        translation = gemini_to_chat(body, "llamacpp", model=model, ignores_unknown_tools=True)
        request = self._read_chat(translation.chat | {"stream": is_stream}, translation.param_names)
        if is_count:
            return json_reply({"totalTokens": self.count_chat(request)})
        is_array = is_stream and parse_qs(http_request.path.partition("?")[2]).get("alt") != ["sse"]
        dialect = (GeminiArrayFormat if is_array else GeminiFormat)(includes_thoughts=translation.shows_reasoning)
        return self.chat(request, dialect)

    def _json_body(self, http_request: MockHttpRequest) -> Json:
        if not http_request.is_utf8:
            raise invalid_request("We could not parse the JSON body of your request: it is not UTF-8.")
        return read_body(http_request.body.encode(), None)

    def _socket(self, http_request: MockHttpRequest) -> MockReply:
        """Answer the handshake of a WebSocket, or one of its messages: the events of the reply are sent as messages."""
        if http_request.method == "GET":
            return accept_socket(http_request.headers)
        event = self._json_body(http_request)
        if event.pop("type", None) != "response.create":
            raise invalid_request("Invalid 'type': it must be 'response.create'.", param="type", code="invalid_value")
        previous = event.get("previous_response_id")
        if isinstance(previous, str) and previous.startswith(f"{ID_PREFIX}ideal"):
            del event["previous_response_id"]  # a response of this server: its text does not depend on it
        return self._respond({"stream": True} | event)

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
        """Return the model name, by default the first one. Raises `ApiError` for an unknown model."""
        if name is None:
            return self.models[0]
        if name not in self.models:
            raise ApiError(404, f"The model '{name[:100]}' does not exist.", param="model", code="model_not_found")
        return name


def _is_anthropic_path(http_request: MockHttpRequest) -> bool:
    return http_request.path.startswith("/v1/messages")


def _is_google_path(http_request: MockHttpRequest) -> bool:
    path = http_request.path.partition("?")[0]
    return path.startswith("/v1beta/") or GEMINI_PATH.fullmatch(unquote(path)) is not None
