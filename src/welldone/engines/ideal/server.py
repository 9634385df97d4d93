"""The server around the answers: who may ask, which path answers, and what is told of itself."""

import hmac
import re
from collections.abc import Callable
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from welldone.engines.ideal.answers import Answers
from welldone.engines.ideal.messages import Answered, Messages
from welldone.engines.ideal.refusals import RefusedError, invalid, not_found, refusal
from welldone.engines.ideal.requests import Body, Chat, Completion, read
from welldone.engines.ideal.responses import Responses
from welldone.engines.scripted import Seen
from welldone.engines.scripts import Piece, Reply, json_reply
from welldone.wire.events import Json

TEXT = "Hello! How can I help you today?"
GAUGE = "llamacpp:requests_processing"
"""How many requests are being answered, under a name that llama.cpp has made known."""
_METHODS = "GET, HEAD, POST, OPTIONS"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")  # the name of a header

Answerer: TypeAlias = Callable[[Seen], Reply]
RequestKind = TypeVar("RequestKind", bound=Body)


class Ideal(Answers):
    """Answers requests. Its `answer` is the `choose` of a `Scripted` that lets it answer all of them (`for_all`)."""

    def __init__(
        self,
        *,
        text: str = TEXT,
        gap_s: float = 0.0,
        key: str | None = None,
        models: tuple[str, ...] = ("ideal",),
        context: int = 4096,
    ) -> None:
        super().__init__(text=text, gap_s=gap_s, context=context)
        self.models = models
        self._key = key
        self._running: list[Seen] = []

    # ---- HTTP

    def answer(self, seen: Seen) -> Reply:
        """The reply to any request."""
        try:
            reply = self.route(seen)
        except RefusedError as error:
            reply = refusal(error, is_anthropic=True) if _is_anthropic(seen) else self.refuse(error)
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
        reply = answerer(seen)
        if method == "POST":
            self.running()  # forgets those that have ended
            self._running.append(seen)
        return reply

    def find(self, path: str) -> tuple[str, Answerer]:
        """The method that a path takes, and who answers there."""
        routes: dict[str, tuple[str, Answerer]] = {
            "/v1/chat/completions": ("POST", lambda seen: self.chat(self.read(seen, Chat))),
            "/v1/completions": ("POST", lambda seen: self.completions(self.read(seen, Completion))),
            "/v1/responses": ("POST", lambda seen: self.responses(self.read(seen, Responses))),
            "/v1/messages": ("POST", lambda seen: self.messages(self.read(seen, Answered))),
            "/v1/messages/count_tokens": ("POST", lambda seen: self.count(self.read(seen, Messages))),
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
        if _is_anthropic(seen) and "x-api-key" in seen.headers:
            said = f"Bearer {seen.headers['x-api-key']}"
        if not hmac.compare_digest(said.encode("latin-1", "replace"), f"Bearer {self._key}".encode()):
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

    def read(self, seen: Seen, kind: type[RequestKind]) -> RequestKind:
        """The request. Raises `RefusedError` for one that is wrong."""
        if not seen.is_utf8:
            raise invalid("We could not parse the JSON body of your request: it is no UTF-8.")
        request = read(seen.body, kind)
        request.model = self.known(request.model)
        return request

    def count(self, request: Messages) -> Reply:
        """How many tokens a request would have."""
        return json_reply({"input_tokens": self.count_chat(request.chat)})

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


def _is_anthropic(seen: Seen) -> bool:
    return seen.path.startswith("/v1/messages")


def _without_body(reply: Reply) -> Reply:
    headers = reply.headers | {"Content-Length": str(len(reply.body))}
    return msgspec.structs.replace(reply, pieces=(), headers=headers, framing="length")
