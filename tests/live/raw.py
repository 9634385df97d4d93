"""A client in bytes: what it says and hears, with nothing between. Every answer is judged before it is looked at."""

import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from tests.live.server import Running
from welldone.protocol.catalog.enc import NO_REPLACEMENT_CHAR
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture

Json = dict[str, Any]

LIMIT_S = 120.0
"""No answer of a test takes that long, also on a busy machine: a hang is a failure."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SENSIBLE = ("smollm2", "default")
"""The models that are no nonsense."""
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class Line:
    """One connection with one request on it, whose reply is read as it comes."""

    def __init__(
        self,
        server: Running,
        path: str,
        body: Json | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.body = path, body
        self.heard = b""
        data = b"" if body is None else json.dumps(body).encode()
        head = {
            "Host": f"127.0.0.1:{server.port}",
            "Connection": "close",
            **({} if body is None else {"Content-Type": "application/json", "Content-Length": str(len(data))}),
            **server.headers(),
            **(headers or {}),
        }
        lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        self.socket = socket.create_connection(("127.0.0.1", server.port), LIMIT_S)
        try:
            self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def read(self) -> bytes:
        """What comes next; empty at the end."""
        data = self.socket.recv(65536)
        self.heard += data
        return data

    def wait(self, pattern: bytes) -> re.Match[bytes]:
        """Read until the pattern was heard."""
        while (found := re.search(pattern, self.heard)) is None:
            assert self.read(), f"never heard {pattern!r}: {self.heard[-1000:]!r}"
        return found

    def reply(self) -> "Reply":
        """All of it, when it has ended."""
        while self.read():
            pass
        trace = read_capture(self.heard)
        endpoint = "chat" if "/chat/" in self.path else "completions"
        return Reply(msgspec.structs.replace(trace, request=self.body, endpoint=endpoint))


@dataclass(frozen=True)
class Reply:
    """A reply that has ended."""

    trace: Trace

    @property
    def status(self) -> int:
        """The status."""
        assert self.trace.status is not None
        return self.trace.status

    def header(self, name: str) -> str | None:
        """A header, by its name in lower case."""
        return self.trace.header(name)

    def json(self) -> Json:
        """The body of a reply that is one JSON object, and says so."""
        assert self.trace.media_type == "application/json", self.trace
        value = json.loads(self.trace.body)
        assert isinstance(value, dict)
        return value

    def ok(self) -> Json:
        """The same, of a reply that is no error."""
        assert self.status == 200, self.trace.body
        return self.json()

    def error(self) -> Json:
        """The error; it is in OpenAI's shape."""
        assert self.status >= 400, self.trace
        error = self.json()["error"]
        assert isinstance(error, dict)
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def chunks(self) -> list[Json]:
        """The JSON of each event of a stream."""
        lines = self.trace.body.decode().split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@dataclass
class Choice:
    """What one choice has said."""

    role: str = ""
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments."""
    ids: list[str] = field(default_factory=list, compare=False)
    """Of the calls. They differ from answer to answer."""
    tokens: list[Json] = field(default_factory=list)
    """The log probabilities of chat."""
    logprobs: Json = field(default_factory=dict)
    """Those of completions."""
    finish: str | None = None


@dataclass
class Said:
    """What was said in an answer, streamed or not."""

    choices: list[Choice]
    usage: Json | None
    model: str
    id: str = field(compare=False)
    reply: Reply = field(compare=False)

    @property
    def one(self) -> Choice:
        """The only choice."""
        assert len(self.choices) == 1
        return self.choices[0]

    @property
    def text(self) -> str:
        """The text of the only choice."""
        return self.one.text

    @property
    def counts(self) -> tuple[int, int]:
        """The tokens of prompt and answer."""
        assert self.usage is not None
        return self.usage["prompt_tokens"], self.usage["completion_tokens"]


def ask(
    server: Running,
    path: str,
    body: Json | None = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """The reply to a request."""
    with Line(server, path, body, method=method, headers=headers) as line:
        return line.reply()


def chat(server: Running, messages: str | Sequence[Json], *, path: str = CHAT, **fields: object) -> Said:
    """A judged answer to messages; a text is what a user says."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return judged(ask(server, path, _request(server, {"messages": said, **fields})))


def complete(server: Running, prompt: str | Sequence[object], *, path: str = COMPLETIONS, **fields: object) -> Said:
    """A judged continuation."""
    return judged(ask(server, path, _request(server, {"prompt": prompt, **fields})))


def judged(reply: Reply) -> Said:
    """What a right answer says. One that breaks a rule, however small, is none."""
    assert reply.status == 200, reply.trace.body
    # Models of random weights now and then leave a character without its end. What is lost so cannot be said.
    is_whole = (reply.trace.request or {}).get("model") in SENSIBLE
    findings = [one for one in judge(reply.trace).findings if is_whole or one.rule != NO_REPLACEMENT_CHAR.id]
    assert not findings, "\n".join(str(finding) for finding in findings)
    return _streamed(reply) if reply.trace.wants_stream else _whole(reply)


def _request(server: Running, fields: Json) -> Json:
    # A model of random weights may say nothing but halves of characters: what it says is not left to chance.
    request = {"model": server.model, "seed": 1, **fields}
    if request.get("stream") and "stream_options" not in request:
        request["stream_options"] = {"include_usage": True}
    return {name: value for name, value in request.items() if value is not None}


def _whole(reply: Reply) -> Said:
    value = reply.json()
    assert [choice["index"] for choice in value["choices"]] == list(range(len(value["choices"])))
    choices = []
    for part in value["choices"]:
        message = part.get("message", {})
        choice = Choice(role=message.get("role", ""), finish=part["finish_reason"])
        _add(choice, {**message, "tool_calls": message.get("tool_calls") or []}, part)
        choices.append(choice)
    return Said(choices, _plain(value["usage"]), value["model"], value["id"], reply)


def _streamed(reply: Reply) -> Said:
    chunks = reply.chunks()
    choices: dict[int, Choice] = {}
    for part in (part for chunk in chunks for part in chunk["choices"]):
        choice = choices.setdefault(part["index"], Choice())
        delta = part.get("delta", {})
        choice.role += delta.get("role", "")
        choice.finish = part["finish_reason"] or choice.finish
        _add(choice, delta, part)
    assert sorted(choices) == list(range(len(choices)))
    ordered = [choices[index] for index in range(len(choices))]
    return Said(ordered, _plain(chunks[-1].get("usage")), chunks[0]["model"], chunks[0]["id"], reply)


def _add(choice: Choice, said: Json, part: Json) -> None:
    """Add what a delta or a message says."""
    choice.text += said.get("content") or part.get("text") or ""
    choice.reasoning += said.get("reasoning_content") or ""
    calls = list(said.get("tool_calls", ()))
    if said.get("function_call"):
        calls.append({"id": "", "index": 0, "function": said["function_call"]})
    for call in calls:
        if call["function"].get("name"):
            choice.ids.append(call.get("id", ""))
            choice.calls.append((call["function"]["name"], ""))
        at = call.get("index", len(choice.calls) - 1)
        name, arguments = choice.calls[at]
        choice.calls[at] = (name, arguments + call["function"].get("arguments", ""))
    logprobs = part.get("logprobs") or {}
    choice.tokens += logprobs.get("content") or ()
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        if logprobs.get(name) is not None:
            choice.logprobs[name] = choice.logprobs.get(name, []) + logprobs[name]


def _plain(usage: Json | None) -> Json | None:
    """The counts alone: how much of a prompt was still known differs from answer to answer."""
    return usage and {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
