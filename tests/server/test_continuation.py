"""Continuation of answers whose upstream fails after the first byte: prefill, checked replay, or the error event."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, ROLE, STOP, RecordedReply, json_error
from tests.table import table
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript, json_reply

WORDS = ("The", " capital", " of", " France", " is", " Paris", ".")
TEXT = "".join(WORDS)
CUT_AFTER = 4
DELIVERED = "".join(WORDS[:CUT_AFTER])
PAUSE = MockChunk(after_s=0.05)
"""So that the client has received what was sent before."""
FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
PREFILL: Any = {"each": {"continues": "prefill"}}


def words(*texts: str) -> tuple[MockChunk, ...]:
    return tuple(MockChunk(CHUNK_TEMPLATE % (json.dumps({"content": text}), "null")) for text in texts)


def usage(prompt: int, completion: int) -> MockChunk:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    envelope = {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 9, "model": "scripted", "choices": []}
    return MockChunk(f"data: {json.dumps({**envelope, 'usage': counts})}\n\n")


def whole(*chunks: MockChunk, tokens: tuple[int, int] = (10, 7)) -> MockReply:
    return MockReply((ROLE, *chunks, STOP, usage(*tokens), DONE))


BROKEN = MockReply((ROLE, *words(*WORDS[:CUT_AFTER]), PAUSE), end="cut")
CUT_AGAIN = MockReply((ROLE, *words(WORDS[CUT_AFTER]), PAUSE), end="cut")
REST = whole(*words(*WORDS[CUT_AFTER:]), tokens=(14, 3))
AGAIN = whole(*words(*WORDS))


def posted(serving: Gateway) -> list[dict[str, Any]]:
    """The generation requests of all upstreams."""
    posts = [one for upstream in serving.upstreams for one in upstream.requests if one.method == "POST"]
    return [json.loads(one.body) for one in posts if one.path.endswith("completions")]


def text_of(reply: RecordedReply) -> str:
    pieces = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    return "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces if piece.get("choices"))


def ask(
    folder: Path,
    *scripts: Any,  # noqa: ANN401 - scripts of upstreams
    request: dict[str, Any] = STREAM,
    path: str = "/v1/chat/completions",
    headers: str = "x-welldone-report: 1\r\n",
    **settings: Any,  # noqa: ANN401 - settings of the gateway
) -> tuple[RecordedReply, list[dict[str, Any]], str]:
    """The response, the requests to the upstreams, and the metrics."""

    async def work() -> tuple[RecordedReply, list[dict[str, Any]], str]:
        async with gateway(folder, *scripts, **settings) as serving:
            reply = await serving.post(request, path, headers)
            return reply, posted(serving), (await serving.get("/metrics")).body.decode()

    return run(work())


def continuations(metrics: str) -> dict[tuple[str, str], int]:
    found = re.findall(r'^welldone_continuations_total\{outcome="(\w+)",way="(\w+)"\} (\S+)$', metrics, re.MULTILINE)
    return {(way, outcome): int(float(count)) for outcome, way, count in found}


@table("upstreams", [1, 2])
def test_prefill_continues_at_the_same_or_another_upstream(tmp_path: Path, upstreams: int) -> None:
    scripts = [[BROKEN, REST]] if upstreams == 1 else [[BROKEN], [REST]]
    request = {**STREAM, "max_tokens": 20, "min_tokens": 3}
    settings = (
        PREFILL if upstreams == 1 else {"each": {"continues": "prefill", "weight": 0.01}, "first": FIRST["first"]}
    )
    reply, requests, metrics = ask(tmp_path, *scripts, request=request, **settings)
    assert reply.findings() == []
    assert text_of(reply) == TEXT
    first, second = requests
    assert second["messages"] == [*first["messages"], {"role": "assistant", "content": DELIVERED}]
    assert (second["max_tokens"], second["min_tokens"]) == (16, 0)
    chunks = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[-1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    assert continuations(metrics) == {("prefill", "complete"): 1}
    assert b"x-welldone-continued: prefill" in reply.raw


@table("tokens", [1, 3])
def test_vllm_is_asked_with_its_own_fields(tmp_path: Path, tokens: int) -> None:
    broken = MockReply((ROLE, *words("Hello", " "), PAUSE), end="cut")
    rest = whole(*words(" wor", "ld"), tokens=(9 + tokens, 3))
    counted = json_reply({"tokens": list(range(tokens)), "count": tokens})
    script = MockScript(posts=(broken, rest), paths={"/tokenize": counted})

    async def work() -> None:
        async with gateway(tmp_path, script) as serving:
            serving.server.upstreams.all[0].kind = "vllm"
            reply = await serving.post({**STREAM, "max_tokens": 8})
            assert text_of(reply) == "Hello world"  # the template may strip the space: it is generated again
            request = posted(serving)[1]
            assert request["messages"][-1] == {"role": "assistant", "content": "Hello"}
            assert (request["continue_final_message"], request["add_generation_prompt"]) == (True, False)
            assert request["max_tokens"] == 8 - tokens  # of the prefill: the space is one of the rest
            usage = {"prompt_tokens": 9, "completion_tokens": tokens + 3, "total_tokens": tokens + 12}
            assert f'"usage":{json.dumps(usage, separators=(",", ":"))}' in reply.body.decode()

    run(work())


@table("counted", [10, None])
def test_replicas_of_a_cluster_are_asked_for_the_tokens(tmp_path: Path, counted: int | None) -> None:
    paths = {"/tokenize": json_reply({"tokens": [1, 2, 3, 4, 5]})}
    if counted is not None:
        paths["/v1/chat/completions/input_tokens"] = json_reply({"input_tokens": counted})
    script = MockScript(posts=(REST,), paths=paths)
    prompt = counted or 9  # of the 14 tokens with the delivered text
    weights = [{"is_dynamic": True, "weight": weight} for weight in (0.01, 1000.0)]

    async def work() -> None:
        async with gateway(tmp_path, [BROKEN], script, each=weights[0], first=weights[1]) as serving:
            for upstream in serving.server.upstreams.all:
                upstream.assign(upstream.address)
            reply = await serving.post({**STREAM, "max_tokens": 20})
            assert text_of(reply) == TEXT
            assert posted(serving)[1]["max_tokens"] == 15
            usage = {"prompt_tokens": prompt, "completion_tokens": 8, "total_tokens": prompt + 8}
            assert f'"usage":{json.dumps(usage, separators=(",", ":"))}' in reply.body.decode()

    run(work())


OTHER = whole(*words("The", " capital", " of", " Germany", " is", " Berlin"))


@table(
    ("second", "counted"),
    [
        ((AGAIN,), {("replay", "complete"): 1}),
        ((OTHER, REST), {("replay", "differed"): 1, ("prefill", "complete"): 1}),
        ((OTHER, json_error(400, {"error": {"message": "no"}})), {("replay", "differed"): 1, ("prefill", "failed"): 1}),
    ],
    ids=["the same text", "another text", "another text, then an error"],
)
def test_a_replica_repeats_a_short_answer_and_continues_one_that_differs(
    tmp_path: Path, second: tuple[MockReply, ...], counted: dict[tuple[str, str], int]
) -> None:
    script = MockScript(posts=second, paths={"/tokenize": json_reply({"tokens": [1, 2, 3, 4]})})
    weights = [{"is_dynamic": True, "weight": weight} for weight in (0.01, 1000.0)]

    async def work() -> None:
        async with gateway(tmp_path, [BROKEN], script, each=weights[0], first=weights[1]) as serving:
            for upstream in serving.server.upstreams.all:
                upstream.assign(upstream.address)
            reply = await serving.post({**STREAM, "temperature": 0})
            assert reply.findings() == []
            assert text_of(reply).startswith(DELIVERED)
            assert continuations((await serving.get("/metrics")).body.decode()) == counted
            first, again, *prefilled = posted(serving)
            assert again == first
            assert [one["messages"][-1]["content"] for one in prefilled] == [DELIVERED] * len(prefilled)
            if ("prefill", "failed") in counted:
                assert (text_of(reply), reply.error["code"]) == (DELIVERED, "upstream_died")
            else:
                assert text_of(reply) == TEXT

    run(work())


@table("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_an_upstream_that_stops_hands_its_streams_over(tmp_path: Path, is_dynamic: bool) -> None:
    error = {"message": "The server is shutting down.", "type": "server_error", "code": "shutting_down"}
    stopped = MockReply((*BROKEN.pieces, MockChunk(f"data: {json.dumps({'error': error})}\n\n"), DONE))
    tokens = {"/tokenize": json_reply({"tokens": [1, 2, 3, 4]})}
    weights = [{"is_dynamic": is_dynamic, "continues": "prefill", "weight": weight} for weight in (0.01, 1000.0)]

    async def work() -> None:
        other = MockScript(posts=(REST,), paths=tokens)
        async with gateway(tmp_path, [stopped], other, each=weights[0], first=weights[1]) as serving:
            first, _ = serving.server.upstreams.all
            for upstream in serving.server.upstreams.all if is_dynamic else ():
                upstream.assign(upstream.address)
            reply = await serving.post(STREAM)
            assert reply.findings() == []
            assert text_of(reply) == TEXT
            assert serving.post_counts == [1, 1]
            assert first.is_available != is_dynamic  # a replica is out of use until it is healthy again

    run(work())


@table("request", [{"temperature": 0}, {"temperature": 0, "logprobs": True}])
def test_a_replay_passes_what_the_client_has(tmp_path: Path, request: dict[str, Any]) -> None:
    again = whole(*words("The cap", "ital of Fr", "ance is", " Paris."))
    reply, requests, metrics = ask(tmp_path, [BROKEN], [again], request={**STREAM, **request}, **FIRST)
    assert reply.findings() == []
    assert text_of(reply) == TEXT
    assert requests[0] == requests[1]
    assert b'"usage":{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17}' in reply.body
    assert continuations(metrics) == {("replay", "complete"): 1}


@table(
    "other",
    [
        whole(*words("The", " capital", " of", " Germany", " is", " Berlin")),
        whole(*words("The", " capital")),
        MockReply((ROLE, MockChunk(CHUNK_TEMPLATE % ('{"reasoning_content":"Hm"}', "null")), STOP, DONE)),
    ],
    ids=["other text", "less text", "reasoning"],
)
def test_a_replay_that_differs_is_the_error_event(tmp_path: Path, other: MockReply) -> None:
    reply, requests, metrics = ask(tmp_path, [BROKEN, other], request={**STREAM, "temperature": 0})
    assert reply.findings() == []
    assert text_of(reply) == DELIVERED
    assert reply.error["code"] == "upstream_died"
    assert len(requests) == 2
    assert continuations(metrics) == {("replay", "differed"): 1}


NO_WAY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "not deterministic": ({}, {}),
    "a seed that nobody honours": ({"seed": 5}, {}),
    "off for the server": ({"temperature": 0}, {"continuation": "off"}),
    "off for the upstream": ({"temperature": 0}, {"each": {"continues": "off"}}),
    "a schema": ({"response_format": {"type": "json_object"}}, PREFILL),
    "a forced tool": ({"tool_choice": "required", "tools": []}, PREFILL),
    "log probabilities": ({"logprobs": True}, PREFILL),
    "reasoning in tags": ({}, {"each": {"continues": "prefill", "think": "tags"}}),
    "no tokens left": ({"max_tokens": 4}, PREFILL),
}


@table("fields, settings", NO_WAY.values(), ids=NO_WAY.keys())
def test_without_a_way_the_answer_ends_with_the_error_event(
    tmp_path: Path, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    reply, requests, metrics = ask(tmp_path, [BROKEN, REST], request={**STREAM, **fields}, **settings)
    assert text_of(reply) == DELIVERED
    assert reply.error["code"] == "upstream_died"
    assert len(requests) == 1
    expected = {} if settings.get("continuation") == "off" else {("none", "failed"): 1}
    assert continuations(metrics) == expected


def test_a_seed_that_the_upstream_honours_allows_a_replay(tmp_path: Path) -> None:
    reply, _, _ = ask(tmp_path, [BROKEN, AGAIN], request={**STREAM, "seed": 5}, each={"continues": "replay"})
    assert text_of(reply) == TEXT


def test_a_server_that_ignores_the_prefill_is_noticed(tmp_path: Path) -> None:
    reply, _, metrics = ask(tmp_path, [BROKEN, AGAIN], **PREFILL)
    assert text_of(reply) == DELIVERED
    assert reply.error["code"] == "upstream_died"
    assert continuations(metrics) == {("prefill", "differed"): 1}


@table("failure", [json_error(400, {"error": {"message": "no prefill"}}), MockReply(raw=True, end="cut"), CUT_AGAIN])
def test_if_the_continuation_fails_the_client_gets_the_first_error(tmp_path: Path, failure: MockReply) -> None:
    reply, requests, metrics = ask(tmp_path, [BROKEN, failure], **PREFILL)
    assert text_of(reply).startswith(DELIVERED)
    assert reply.error["code"] == "upstream_died"
    assert reply.findings() == []
    assert len(requests) == 2
    assert continuations(metrics)["prefill", "failed"] == 1


@table("end", ["cut", "reset", "hang", "whole"])
def test_every_kind_of_end_is_continued(tmp_path: Path, end: Any) -> None:  # noqa: ANN401 - a literal
    broken = MockReply(BROKEN.pieces, end=end)
    reply, _, _ = ask(tmp_path, [broken, REST], idle_s=0.3, **PREFILL)
    assert text_of(reply) == TEXT


def test_an_error_event_of_the_upstream_is_continued(tmp_path: Path) -> None:
    error = MockChunk('data: {"error":{"message":"worker died","code":500}}\n\n')
    broken = MockReply((*BROKEN.pieces, MockChunk(words(" is")[0].text + error.text)))
    reply, requests, _ = ask(tmp_path, [broken, whole(*words(" Paris", "."))], **PREFILL)
    assert text_of(reply) == TEXT
    assert requests[1]["messages"][-1]["content"] == DELIVERED + " is"


def test_an_answer_with_nothing_but_its_role_is_requested_again(tmp_path: Path) -> None:
    broken = MockReply((ROLE, PAUSE), end="cut")
    reply, requests, _ = ask(tmp_path, [broken, AGAIN])
    assert reply.findings() == []
    assert text_of(reply) == TEXT
    assert requests[0] == requests[1]


def test_a_whole_reply_is_continued_too(tmp_path: Path) -> None:
    reply, requests, _ = ask(tmp_path, [BROKEN, REST], request=CHAT, **PREFILL)
    assert reply.status == 200
    assert reply.json["choices"][0]["message"]["content"] == TEXT
    assert reply.json["id"] == "chatcmpl-1"
    assert reply.json["usage"]["prompt_tokens"] == 10
    assert requests[1]["messages"][-1]["content"] == DELIVERED
    assert b"x-welldone-continued: prefill" in reply.raw


def test_one_of_several_choices_is_continued(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [BROKEN, REST, AGAIN], each={"continues": "prefill", "limit": 1}) as serving:
            reply = await serving.post({**STREAM, "n": 2})
            assert reply.findings() == []
            texts = {0: "", 1: ""}
            for line in reply.body.decode().splitlines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        texts[choice["index"]] += choice["delta"].get("content", "")
            assert texts == {0: TEXT, 1: TEXT}
            assert b'"prompt_tokens":10,"completion_tokens":14' in reply.body

    run(work())


ERROR_EVENT = MockChunk('data: {"error":{"message":"worker died","code":500}}\n\n')
WITHOUT_TEXT = {
    "a byte": MockReply((MockChunk(base64=ROLE.data[:1]), PAUSE), end="cut"),
    "half of the role": MockReply((MockChunk(base64=ROLE.data[:50]), PAUSE), end="cut"),
    "the role": MockReply((ROLE, PAUSE), end="cut"),
    "the role, then an error": MockReply((ROLE, PAUSE, ERROR_EVENT, DONE)),
    "an error": MockReply((ERROR_EVENT, DONE)),
    "an end": MockReply((ROLE,)),
    "nothing": MockReply(()),
}


@table("continuation", ["auto", "off"])
@table("stream", [True, False])
@table("start", WITHOUT_TEXT.values(), ids=WITHOUT_TEXT.keys())
def test_a_choice_that_breaks_off_before_its_text_is_requested_again(
    tmp_path: Path, start: MockReply, stream: bool, continuation: str
) -> None:
    request = {**CHAT, "stream": stream, "n": 2}
    reply, requests, _ = ask(tmp_path, [start, AGAIN], [AGAIN], request=request, continuation=continuation, **FIRST)
    assert reply.status == 200
    assert reply.body.count(b'"finish_reason":"stop"') == 2
    assert b'"error"' not in reply.body
    assert len(requests) == 3


FINISHED_BYTES = len(MockReply((ROLE, *words(*WORDS), STOP)).body)


@table("request", [STREAM, {**CHAT, "stream": True}, CHAT], ids=["usage", "stream", "whole"])
@table("byte", [FINISHED_BYTES, FINISHED_BYTES + 20, len(AGAIN.body) - len(DONE.data), len(AGAIN.body) - 3])
def test_an_answer_that_breaks_off_after_its_finish_reason_is_complete(
    tmp_path: Path, byte: int, request: dict[str, Any]
) -> None:
    finished = MockReply((MockChunk(base64=AGAIN.body[:byte]), PAUSE), end="cut")
    reply, requests, metrics = ask(tmp_path, [finished, AGAIN], request=request)
    assert reply.status == 200
    assert b'"error"' not in reply.body
    assert reply.body.count(b'"finish_reason":"stop"') == 1
    assert (len(requests), continuations(metrics)) == (1, {})
    has_usage, wants_usage = byte >= len(AGAIN.body) - len(DONE.data), request.get("stream_options") or request is CHAT
    assert (b'"usage":{' in reply.body) == bool(has_usage and wants_usage)
    missing = "ns-usage" if request is CHAT else "use-final-chunk"  # a count would be invented
    assert reply.findings() == ([] if has_usage or not wants_usage else [missing])
    assert request is CHAT or reply.body.endswith(DONE.data)


def test_content_after_a_finish_reason_may_have_more(tmp_path: Path) -> None:
    early = MockReply((ROLE, *words(*WORDS[:2]), STOP, *words(*WORDS[2:CUT_AFTER]), PAUSE), end="cut")
    reply, _, _ = ask(tmp_path, [early])
    assert text_of(reply) == DELIVERED
    assert reply.error["code"] == "upstream_died"


TOOL = '{"tool_calls":[{"index":0,"id":"call_%s","type":"function","function":{"name":"%s","arguments":%s}}]}'


def call(identifier: str, name: str, *arguments: str) -> tuple[MockChunk, ...]:
    first = MockChunk(CHUNK_TEMPLATE % (TOOL % (identifier, name, json.dumps(arguments[0])), "null"))
    more = [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in arguments[1:]]
    return (first, *(MockChunk(CHUNK_TEMPLATE % (json.dumps(delta), "null")) for delta in more))


CALLED = MockChunk(CHUNK_TEMPLATE % ("{}", '"tool_calls"'))


@table("name", ["get_weather", "get_time"])
def test_a_tool_call_is_continued_by_a_replay_only(tmp_path: Path, name: str) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    broken = MockReply((ROLE, *call("a", "get_weather", '{"city":', '"Par'), PAUSE), end="cut")
    again = MockReply((ROLE, *call("b", name, '{"city":"P', 'aris"}'), CALLED, usage(9, 9), DONE))
    request = {**STREAM, "temperature": 0, "tools": tools}
    reply, _, _ = ask(tmp_path, [broken, again], request=request, **PREFILL)
    assert reply.findings() == []
    assert b"call_b" not in reply.body
    arguments = re.findall(rb'"arguments":"((?:[^"\\]|\\.)*)"', reply.body)
    if name == "get_weather":
        assert json.loads(json.loads(b'"' + b"".join(arguments) + b'"')) == {"city": "Paris"}
        assert b'"finish_reason":"tool_calls"' in reply.body
    else:
        assert reply.error["code"] == "upstream_died"


def test_a_stop_string_across_the_seam_is_found_by_the_upstream(tmp_path: Path) -> None:
    broken = MockReply((ROLE, *words("One", " two", "\n"), PAUSE), end="cut")
    rest = whole(*words("\n", "three"))
    reply, requests, _ = ask(tmp_path, [broken, rest], request={**STREAM, "stop": ["\n\n", "END"]}, **PREFILL)
    assert requests[1]["messages"][-1]["content"] == "One two"
    assert text_of(reply) == "One two\nthree"


def completion(text: str, reason: str = "null") -> MockChunk:
    choice = f'{{"index":0,"text":{json.dumps(text)},"logprobs":null,"finish_reason":{reason}}}'
    head = '"id":"cmpl-1","object":"text_completion","created":1,"model":"scripted"'
    return MockChunk(f'data: {{{head},"choices":[{choice}]}}\n\n')


def test_completions_continue_the_prompt(tmp_path: Path) -> None:
    request = {"model": "m", "prompt": "Say: ", "stream": True}
    broken = MockReply((completion("The"), completion(" cat"), PAUSE), end="cut")
    rest = MockReply((completion(" sat"), completion("", '"stop"'), DONE))
    reply, requests, _ = ask(tmp_path, [broken, rest], request=request, path="/v1/completions", **PREFILL)
    assert reply.findings("completions") == []
    assert requests[1]["prompt"] == "Say: The cat"
    assert "".join(re.findall(r'"text":"([^"]*)"', reply.body.decode())) == "The cat sat"


DIALECTS = {
    "/v1/messages": {"model": "m", "max_tokens": 50, "messages": CHAT["messages"], "stream": True},
    "/v1/responses": {"model": "m", "input": "Hi", "stream": True},
    "/api/chat": {"model": "m", "messages": CHAT["messages"]},
}


@table("path", DIALECTS)
def test_all_dialects_are_continued(tmp_path: Path, path: str) -> None:
    reply, requests, _ = ask(tmp_path, [BROKEN, REST], request=DIALECTS[path], path=path, **PREFILL)
    assert requests[1]["messages"][-1] == {"role": "assistant", "content": DELIVERED}
    pieces = re.findall(r'"(?:text|delta|content)":"([^"]+)"', reply.body.decode())
    assert "".join(pieces).startswith(TEXT)
    assert '"error":{' not in reply.body.decode()


def test_keep_alives_are_sent_while_an_answer_is_continued(tmp_path: Path) -> None:
    slow = MockReply(REST.pieces, after_s=0.6)
    reply, _, _ = ask(tmp_path, [BROKEN, slow], keep_alive_s=0.1, **PREFILL)
    assert text_of(reply) == TEXT
    assert re.search(rb"France.*: keep-alive.*Paris", reply.body, re.DOTALL)


def test_the_request_log_and_the_capture_name_the_way(tmp_path: Path) -> None:
    async def work() -> None:
        name = "a" * 22
        async with gateway(tmp_path, [BROKEN, REST], each={"continues": "prefill"}) as serving:
            reply = await serving.post(STREAM, headers=f"x-welldone-tape: {name}\r\n")
            assert text_of(reply) == TEXT
            (row,) = (await serving.get("/page/api/state")).json["recent"]
            assert (row["continued"], row["failed"]) == (["prefill"], ["a:cut"])
            capture = (await serving.get(f"/page/api/tapes/{name}")).json
            assert [attempt["continues"] for attempt in capture["attempts"]] == [None, "prefill"]
            assert "".join(step["sent"] for step in capture["steps"]).encode() in reply.body
            assert capture["is_done"]

    run(work())


def test_a_route_to_another_model_is_not_continued_by_prefill(tmp_path: Path) -> None:
    config = {"routes": {"m": ("x@a", "y@b")}}
    settings: Any = {"each": {"continues": "prefill", "weight": 0.01}, "first": {"weight": 1000.0}}
    reply, requests, _ = ask(tmp_path, [BROKEN], [REST], config=config, **settings)
    assert reply.error["code"] == "upstream_died"
    assert len(requests) == 1


@pytest.mark.parametrize("byte", range(0, len(BROKEN.body), 97))
def test_an_answer_is_whole_wherever_it_is_cut(tmp_path: Path, byte: int) -> None:
    complete = whole(*words(*WORDS))
    start = MockReply((MockChunk(base64=complete.body[:byte]), PAUSE), end="cut")
    reply, _, _ = ask(tmp_path, [start], [complete], request={**STREAM, "temperature": 0}, **FIRST)
    assert reply.findings() == []
    assert text_of(reply) == TEXT
