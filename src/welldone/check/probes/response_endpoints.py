"""Probes of endpoints that belong to /v1/responses: /v1/responses/compact, and responses over a WebSocket."""

from typing import Any

import msgspec

from welldone.check import settings
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import NotApplicableError, Probe, ProbeSocket, Session
from welldone.check.socket_reply import event_of, is_event
from welldone.http.recording_socket import SocketRecording
from welldone.protocol.websocket_frames import Opcode
from welldone.rules.view.choices import as_list, as_object, as_text, is_int

_COMPACT_RULE = "resp-compact"
_SOCKET_RULE = "resp-socket"
_TOKENS = 16
_QUESTION = {"role": "user", "content": "What is the capital of France?"}
_CONVERSATION = (
    _QUESTION,
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris."}]},
)
_BRIEFLY = "Answer in one short sentence."
"""Instructions for a compaction, whose length no field limits."""


# ---- /v1/responses/compact


async def _probe_compact(session: Session) -> None:
    body = msgspec.json.encode({"model": session.facts.model, "input": _CONVERSATION, "instructions": _BRIEFLY})
    request = ProbeRequest(method="POST", path="/responses/compact", body=body, endpoint=session.dialect.name)
    reply = session.require_ok(await session.send(request, is_judged=False))
    problem = _compaction_problem(reply.json)
    expected = '{"id":"…","object":"response.compaction","created_at":n,"output":[…],"usage":{…}}'
    session.check_rule(_COMPACT_RULE, reply, not problem, problem, expected)
    if not problem:
        answer = await session.generate([*reply.json["output"], _QUESTION], max_tokens=_TOKENS)
        expected = "an answer: the output of a compaction is the input of the next request"
        session.check_rule(_COMPACT_RULE, answer, answer.is_ok, answer.error_summary, expected)


def _compaction_problem(compaction: dict[str, Any]) -> str:
    """The first error in a compaction; empty if there is none."""
    items = [as_object(item) for item in as_list(compaction.get("output"))]
    summaries = [item for item in items if item.get("type") == "compaction"]
    problems = {
        "id is not a non-empty string": not as_text(compaction.get("id")),
        "object is not 'response.compaction'": compaction.get("object") != "response.compaction",
        "created_at is not an integer": not is_int(compaction.get("created_at")),
        "usage is not an object": not isinstance(compaction.get("usage"), dict),
        "output has no item of type 'compaction'": not summaries,
        "a compaction has no encrypted_content": not all(as_text(item.get("encrypted_content")) for item in summaries),
    }
    return next((problem for problem, is_found in problems.items() if is_found), "")


# ---- responses over a WebSocket


async def _probe_socket(session: Session) -> None:
    async with session.open_socket() as socket:
        first, recording = await _create(session, socket, settings.HELLO_PROMPT)
        expected = "Sec-WebSocket-Accept for the key of the handshake"
        session.check_rule(_SOCKET_RULE, first, socket.is_key_accepted, "another value", expected)
        _check_messages(session, first, recording)
        last = event_of(recording.messages[-1][2]) if recording.messages else {}
        response_id = as_text(as_object(last.get("response")).get("id"))
        if not response_id:
            raise NotApplicableError(first.error_summary if last else "no response on the WebSocket")
        second, recording = await _create(session, socket, settings.HELLO_PROMPT, previous_response_id=response_id)
        _check_messages(session, second, recording)
        if recording.error is None:
            expected = "a response that continues the last one of the connection, which is not stored"
            session.check_rule(_SOCKET_RULE, second, second.is_ok, second.error_summary, expected)
            refused, recording = await _create(session, socket, "Go on.", previous_response_id="resp_of_no_server")
            _check_messages(session, refused, recording)


async def _create(
    session: Session,
    socket: ProbeSocket,
    prompt: str,
    **members: Any,  # noqa: ANN401 - JSON
) -> tuple[ProbeReply, SocketRecording]:
    limit = max(_TOKENS + session.facts.reasoning_allowance, session.dialect.min_tokens)
    head = {"type": "response.create", "model": session.facts.model, "input": prompt, "store": False}
    return await socket.exchange({**head, **session.facts.members, session.facts.limit_field: limit, **members})


def _check_messages(session: Session, reply: ProbeReply, recording: SocketRecording) -> None:
    """Each message is one event as JSON in a text frame, and the connection stays open for the last one."""
    observed = recording.error or ""
    for _, opcode, data in recording.messages:
        if opcode is not Opcode.TEXT or not is_event(data):
            observed = f"a {opcode.name.lower()} message: {data[:100].decode(errors='replace')}"
            break
    expected = "events as JSON, one in each text message, until the last event of the response or an error event"
    session.check_rule(_SOCKET_RULE, reply, not observed, observed, expected)


RESPONSE_ENDPOINT_PROBES = (
    Probe("compact", "/v1/responses/compact, and an answer to its output", _probe_compact, (_COMPACT_RULE,)),
    Probe("socket", "responses over a WebSocket, one after the other", _probe_socket, (_SOCKET_RULE,)),
)
