"""Unusual but valid requests, drawn from the fields that are forwarded to an engine."""

import base64
import random
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from faults.client import CHAT
from faults.dialects import COMPLETIONS
from welldone.schemas.chat import SAMPLERS, GenerationBody
from welldone.schemas.fields import FieldHandling, describe_fields
from welldone.server.api.openapi import struct_components

Json = dict[str, Any]
Draw = random.Random

VOCABULARY = 300
"""Token ids are drawn up to here; the tiny models have a few more."""
WORDS = (
    "Hello",
    "\0",
    "\0" * 100,
    "<|im_end|><|im_start|>system\n",
    "<think></think><think>",
    "<tool_call>{",
    "\ufeff\u202e\u2066",
    "\U0010ffff\ufffe",
    "e" + "\u0301" * 500,
    "👩‍👩‍👧‍👦" * 50,
    "{{ 7 * 7 }}{% for x in range(9) %}",
    "a" * 4000,
    " " * 4000,
    "\n" * 2000,
    "\\u0000\\ud800",
    "%s%n%x",
    "",
)
PATTERNS = (
    "^[z-a]$",
    "^\\d{0,2000}$",
    "^[^\\s\\S]$",
    "^(?:)$",
    "^.{1000}$",
    "^\\u{110000}$",
    "^[\\x00-\\x1f]+$",
    "^(a|b|c){1,9}$",
    "^\\p{L}+$",
    "^a{2,1}$",
    "^[]$",
    "^($|^)$",
    "^\\",
    "^[a",
    "^(a",
    '^"$',
    "a",
    "^(?=a)b$",
    "^[\ud7ff-\ue000]$",
    "^[🙂-🙃]{3}$",
)


class Hostile(NamedTuple):
    """A request."""

    path: str
    body: Json

    @property
    def data(self) -> bytes:
        """Encode the body."""
        return msgspec.json.encode(self.body)


def draw(chance: Draw, models: Mapping[str, str]) -> Hostile:
    """Draw a request for one of the models by kind: `chat`, `seeing`, `embedding` or `ranking`."""
    kind = chance.choices(("chat", "text", "seeing", "embedding", "ranking", "tokens"), (8, 4, 3, 2, 1, 1))[0]
    return _KINDS[kind](chance, models)


def _chat(chance: Draw, models: Mapping[str, str]) -> Hostile:
    body: Json = {"model": models["chat"], "messages": _messages(chance), **_sampling(chance), **_form(chance)}
    if chance.random() < 0.3:
        body |= _tools(chance)
    if chance.random() < 0.2:
        names = ("enable_thinking", "reasoning_effort", "bos_token", "add_vision_id", "x")
        values = (None, True, -1, 1e308, "a" * 200, WORDS[1])
        body["chat_template_kwargs"] = {chance.choice(names): chance.choice(values)}
    if chance.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": chance.choice((0, 1, 20))}
    return Hostile(CHAT, body)


def _text(chance: Draw, models: Mapping[str, str]) -> Hostile:
    tokens = [chance.randrange(VOCABULARY) for _ in range(chance.choice((1, 2, 100, 1500)))]
    prompt: object = chance.choice((chance.choice(WORDS), tokens, [chance.choice(WORDS) for _ in range(8)]))
    body: Json = {"model": models["chat"], "prompt": prompt, **_sampling(chance), **_form(chance)}
    if chance.random() < 0.2:
        body["logprobs"] = chance.choice((0, 1, 20))
    return Hostile(COMPLETIONS, body)


def _seeing(chance: Draw, models: Mapping[str, str]) -> Hostile:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + _picture(chance)}}
    content = [part] * chance.choice((1, 1, 3)) + [{"type": "text", "text": chance.choice(WORDS)}]
    body = {"model": models["seeing"], "messages": [{"role": "user", "content": content}], **_sampling(chance)}
    return Hostile(CHAT, body)


def _embedding(chance: Draw, models: Mapping[str, str]) -> Hostile:
    tokens = [chance.randrange(60) for _ in range(chance.choice((1, 5, 100)))]
    given = chance.choice((chance.choice(WORDS), tokens, [chance.choice(WORDS) for _ in range(20)], [tokens] * 20))
    return Hostile("/v1/embeddings", {"model": models["embedding"], "input": given})


def _ranking(chance: Draw, models: Mapping[str, str]) -> Hostile:
    documents = [chance.choice(WORDS) for _ in range(chance.choice((1, 2, 50)))]
    return Hostile(
        "/v1/rerank",
        {"model": models["ranking"], "query": chance.choice(WORDS), "documents": documents, "top_n": 2**31 - 1},
    )


def _tokens(chance: Draw, models: Mapping[str, str]) -> Hostile:
    if chance.random() < 0.5:
        tokens = [chance.randrange(VOCABULARY) for _ in range(chance.choice((0, 1, 5000)))]
        return Hostile("/detokenize", {"model": models["chat"], "tokens": tokens})
    return Hostile(
        "/tokenize",
        {
            "model": models["chat"],
            "content": chance.choice(WORDS) * chance.choice((1, 30)),
            "parse_special": chance.random() < 0.5,
            "with_pieces": chance.random() < 0.5,
        },
    )


_KINDS: Mapping[str, Callable[[Draw, Mapping[str, str]], Hostile]] = {
    "chat": _chat,
    "text": _text,
    "seeing": _seeing,
    "embedding": _embedding,
    "ranking": _ranking,
    "tokens": _tokens,
}


def _messages(chance: Draw) -> list[Json]:
    out: list[Json] = []
    for _ in range(chance.choice((1, 1, 2, 8))):
        role = chance.choice(("user", "user", "system", "assistant", "developer", "tool"))
        message: Json = {"role": role, "content": chance.choice(WORDS) * chance.choice((1, 1, 3))}
        if role == "tool":
            message["tool_call_id"] = "a"
        if role == "assistant" and chance.random() < 0.5:
            call = {"name": "f", "arguments": chance.choice(("{}", "[]", "{", "", '{"a":1e999}', "null"))}
            message["tool_calls"] = [{"id": "a", "type": "function", "function": call}]
        out.append(message)
    return out


def _sampling(chance: Draw) -> Json:
    """Draw forwarded fields with boundary or random values."""
    body: Json = {"max_tokens": chance.choice((1, 16, 64)), "stream": chance.random() < 0.5}
    properties = struct_components(GenerationBody)["GenerationBody"]["properties"]
    fields = [field for field in describe_fields(GenerationBody) if field.handling is FieldHandling.FORWARDED]
    for field in chance.sample(fields, chance.choice((0, 2, 6, len(fields)))):
        schema_of_field = properties[field.name]["anyOf"][0]
        if schema_of_field["type"] == "boolean":
            body[field.name] = chance.random() < 0.5
            continue
        low, high = schema_of_field["minimum"], schema_of_field["maximum"]
        if schema_of_field["type"] == "number":
            body[field.name] = chance.choice((low, high, chance.uniform(low, high), low + 1e-38))
        else:
            body[field.name] = chance.choice((low, high, low + 1, (low + high) // 2))
    if chance.random() < 0.2:
        body["samplers"] = chance.choices(sorted(SAMPLERS), k=chance.choice((1, 3, len(SAMPLERS))))
    if chance.random() < 0.2:
        amount = chance.choice((-100, 100, 0.5))
        body["logit_bias"] = {str(token): amount for token in range(chance.choice((1, VOCABULARY)))}
    if chance.random() < 0.1:
        body["dry_sequence_breakers"] = ["\n", "\0", "🙂", "a" * 40]
    if chance.random() < 0.2:
        body["stop"] = [chance.choice(("a", "\n", "🙂", "\0", "x" * 256)) for _ in range(16)]
    if chance.random() < 0.1:
        body["n"] = chance.choice((2, 8))
    return body


def _form(chance: Draw) -> Json:
    kind = chance.choices(("", "object", "schema"), (5, 1, 4))[0]
    if not kind:
        return {}
    if kind == "object":
        return {"response_format": {"type": "json_object"}}
    return {"json_schema": schema(chance, 3)}


def schema(chance: Draw, depth: int) -> Json:
    """Draw an unusual schema within the limits."""
    match chance.randrange(9 if depth else 6):
        case 0:
            return {"type": "string", "pattern": chance.choice(PATTERNS)}
        case 1:
            low = chance.choice((0, 5, 2000))
            return {"type": "string", "minLength": low, "maxLength": chance.choice((low, low + 1, 2000))}
        case 2:
            bounds = (-(2**63), -1, 0, 7, 2**53, 2**63 - 1)
            return {"type": "integer", "minimum": chance.choice(bounds), "maximum": chance.choice(bounds)}
        case 3:
            return {"enum": chance.sample(["a", "", "\0", "🙂", 1, None, True, [1], {"a": 1}], 4)}
        case 4:
            return {"type": "string", "format": chance.choice(("date-time", "uuid", "email", "x"))}
        case 5:
            return {"type": chance.choice((["null", "string"], "boolean", "null", "object", "array"))}
        case 6:
            names = chance.sample(["a", "", "\0", '"', "\\", "🙂", "a b", "$ref"], 4)
            inner = {name: schema(chance, depth - 1) for name in names}
            return {
                "type": "object",
                "properties": inner,
                "required": names[: chance.randrange(5)],
                "additionalProperties": chance.choice((False, True)),
            }
        case 7:
            low = chance.choice((0, 1, 50))
            return {"type": "array", "items": schema(chance, depth - 1), "minItems": low, "maxItems": low + 2}
        case _:
            return {chance.choice(("anyOf", "oneOf", "allOf")): [schema(chance, depth - 1) for _ in range(3)]}


def _tools(chance: Draw) -> Json:
    names = ("f", "a.b-c_d", "x" * 128)
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": one}}}}
        for name in names[: chance.randrange(1, 4)]
        for one in [schema(chance, 1)]
    ]
    return {
        "tools": tools,
        "tool_choice": chance.choice(("auto", "required", "none")),
        "parallel_tool_calls": chance.random() < 0.5,
    }


def _picture(chance: Draw) -> str:
    """Draw a PNG: valid, truncated, corrupted, or of unusual size."""
    width, height = chance.choice(((1, 1), (1, 5000), (5000, 1), (64, 64), (2000, 2000), (0x7FFF, 1)))
    rows = zlib.compress((b"\0" + bytes(3 * width)) * height, 1)
    data = bytearray(
        b"\x89PNG\r\n\x1a\n"
        + _piece(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + _piece(b"IDAT", rows)
        + _piece(b"IEND", b"")
    )
    if chance.random() < 0.3:
        del data[chance.randrange(33, len(data)) :]
    if chance.random() < 0.3:
        for _ in range(3):
            data[chance.randrange(24, len(data))] = chance.randrange(256)
    return base64.b64encode(data).decode()


def _piece(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def shown(requests: Sequence[Hostile]) -> list[str]:
    """Shorten the requests for the report."""
    return [f"{one.path} {one.data[:300].decode(errors='replace')}" for one in requests]
