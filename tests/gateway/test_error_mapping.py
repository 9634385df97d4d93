"""Mapping of upstream and engine errors to API errors."""

import json
from typing import Any

import pytest

from tests.recorded.traces import RecordedTrace, recorded_traces
from tests.table import table
from welldone.gateway import error_mapping
from welldone.gateway.error_mapping import is_retryable_status, is_upstream_fault, map_upstream_error, read_retry_after
from welldone.gateway.errors import ApiError

NOON = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def error_body(message: object, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def map_error(status: int, body: bytes = b"", **headers: str) -> ApiError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return map_upstream_error(status, named, body, now=lambda: NOON)


@table(
    ("status", "expected_status", "code"),
    [
        (300, 502, "upstream_redirect"),
        (302, 502, "upstream_redirect"),
        (308, 502, "upstream_redirect"),
        (400, 400, "invalid_request"),
        (401, 502, "upstream_refused"),
        (402, 502, "upstream_refused"),
        (403, 502, "upstream_refused"),
        (404, 404, "not_found"),
        (405, 404, "not_found"),
        (408, 408, None),
        (413, 413, None),
        (415, 415, None),
        (418, 502, "upstream_error"),
        (422, 400, "invalid_request"),
        (429, 429, "rate_limit_exceeded"),
        (500, 502, "upstream_error"),
        (501, 400, "unsupported_by_upstream"),
        (502, 502, "upstream_unavailable"),
        (503, 503, "upstream_unavailable"),
        (504, 504, "upstream_unavailable"),
        (520, 502, "upstream_error"),
        (204, 502, "upstream_error"),
    ],
)
@table("body", [b"", b"<html>x</html>", b"[1]", b'{"error":null}', b"\xff", b"[" * 9999])
def test_each_status_is_mapped_whatever_the_body(
    status: int, expected_status: int, code: str | None, body: bytes
) -> None:
    error = map_error(status, body)
    assert (error.status, error.code) == (expected_status, code)
    assert error.message
    assert "<" not in error.message
    assert json.loads(error.body())["error"]["message"] == error.message


@pytest.mark.parametrize("status", [409, 423])
def test_a_client_error_is_not_the_upstreams_fault(status: int) -> None:
    assert map_error(409).status in (400, 409)
    assert not is_upstream_fault(status)


OVERFLOWS: dict[str, tuple[int, Any]] = {
    "llama.cpp": (
        400,
        {"error": {"code": 400, "message": "x", "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}},
    ),
    "llama.cpp without numbers": (
        400,
        {"error": {"message": "request (20031 tokens) exceeds the available context size (2048 tokens)"}},
    ),
    "OpenAI": (
        400,
        {"error": {"message": "This model's maximum context length is 8 tokens.", "code": "context_length_exceeded"}},
    ),
    "OpenAI by its code": (400, {"error": {"message": "Too much.", "code": "context_length_exceeded"}}),
    "vLLM": (
        400,
        {"error": {"message": "This model's maximum context length is 1024 tokens.", "param": "input_tokens"}},
    ),
    "older vLLM": (400, {"object": "error", "message": "The prompt is longer than the maximum model length of 8."}),
    "SGLang": (400, {"object": "error", "message": "The input (9) is longer than the model's context length (8)."}),
    "TGI": (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."}),
    "Ollama": (500, {"error": {"message": "the input length exceeds the context length"}}),
    "LocalAI": (
        500,
        {"error": {"message": "rpc error: code = Internal desc = request exceeds the available context size"}},
    ),
    "LightLLM": (400, {"message": "the input prompt token len 9 + max_new_tokens is too long > 8"}),
    "a proxy": (413, {"detail": "prompt is too long"}),
}


@table(("status", "body"), OVERFLOWS.values(), ids=OVERFLOWS.keys())
def test_a_context_overflow_has_openais_code(status: int, body: object) -> None:
    data = json.dumps(body).encode()
    error = map_upstream_error(status, {}, data, "prompt")
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "prompt")
    assert error.message
    assert not is_upstream_fault(status, data)
    assert not is_retryable_status(status, data)


@pytest.mark.parametrize("status", [429, 503])
def test_an_overload_that_mentions_the_context_stays_an_overload(status: int) -> None:
    assert map_error(status, error_body("exceeds the maximum context length per minute")).status == status


def test_token_counts_of_llama_cpp_appear_in_the_message() -> None:
    status, body = OVERFLOWS["llama.cpp"]
    message = map_error(status, json.dumps(body).encode()).message
    assert "8 tokens" in message
    assert "9 tokens" in message


@table(
    "message",
    [
        "Failed to parse messages: Missing 'role' in message: {}",
        "Failed to parse tools: Expected 'tools' to be an array",
        "Expected 'content' to be a string or an array",
        "Invalid tool_choice: sometimes",
        "'messages' is required",
        "All non-assistant messages must contain 'content'",
        "Only one completion choice is allowed",
        "image input is not supported - hint: you may need to provide the mmproj",
        'response_format type must be one of "text" or "json_object", but got: yaml',
        "[json.exception.type_error.302] type must be number, but is string",
    ],
)
def test_a_500_that_blames_the_request_becomes_400(message: str) -> None:
    body = error_body(message, code=500, type="server_error")
    error = map_error(500, body)
    assert (error.status, error.code, error.message) == (400, "invalid_request", message)
    assert not is_upstream_fault(500, body)
    assert not is_retryable_status(500, body)


@table(
    "message",
    ["CUDA error: out of memory", "[json.exception.type_error.316] invalid UTF-8 byte", "we expected 'x'", "", None, 5],
)
def test_any_other_500_is_the_upstreams_fault(message: object) -> None:
    assert map_error(500, error_body(message)).status == 502
    assert is_upstream_fault(500, error_body(message))
    assert is_retryable_status(500, error_body(message))


@table(
    ("body", "message", "param", "code"),
    [
        (error_body("bad temperature", param="temperature", code="bad"), "bad temperature", "temperature", "bad"),
        (error_body("no", param="body.max_tokens", code=400), "no", "max_tokens", "invalid_request"),
        (error_body("no", param=7, code="a b"), "no", None, "invalid_request"),
        (b'{"error":"plain words"}', "plain words", None, "invalid_request"),
        (b'{"message":"bare","code":"c1"}', "bare", None, "c1"),
        (b'{"detail":"gone wrong"}', "gone wrong", None, "invalid_request"),
        (b'{"detail":[{"loc":["body","n"],"msg":"too big"}]}', "too big", None, "invalid_request"),
        (b'{"detail":[]}', "The upstream rejected this request.", None, "invalid_request"),
        (b'{"error":{"message":["x"]}}', "The upstream rejected this request.", None, "invalid_request"),
        (error_body("two\n  lines\tand tabs"), "two lines and tabs", None, "invalid_request"),
    ],
)
def test_the_message_of_a_rejection_is_forwarded(body: bytes, message: str, param: str | None, code: str) -> None:
    error = map_error(400, body)
    assert (error.message, error.param, error.code) == (message, param, code)


@table(
    ("body", "code"),
    [
        (error_body("The model `nope` does not exist.", param="model", code=404), "model_not_found"),
        (error_body("nope", code="model_not_found"), "model_not_found"),
        (error_body("", param="model"), "model_not_found"),
        (b'{"error":"model \'x\' not found, try pulling it first"}', "model_not_found"),
        (error_body("File Not Found", type="not_found_error"), "not_found"),
        (b'{"detail":"Not Found"}', "not_found"),
        (error_body("No such File object: file-x", param="id"), "not_found"),
        (b"404 page not found", "not_found"),
    ],
)
def test_a_404_is_a_missing_model_or_a_missing_endpoint(body: bytes, code: str) -> None:
    error = map_error(404, body)
    assert (error.status, error.code) == (404, code)
    assert error.message not in ("Not Found", "File Not Found", "")
    assert not is_upstream_fault(404, body)


REFUSED = [
    one for one in recorded_traces() if one.trace.status is not None and one.trace.status >= 400 and "/bad_" in one.name
]


@table("one", REFUSED, ids=lambda one: one.name)
def test_recorded_rejections_of_servers_are_client_errors(one: RecordedTrace) -> None:
    status = one.trace.status or 0
    error = map_upstream_error(status, {}, one.trace.body)
    if "parse_error" in error.message:  # invalid JSON, which a client cannot send through the gateway
        assert error.status == 502
        return
    assert error.status in (400, 404)
    assert not is_upstream_fault(status, one.trace.body)
    assert ("ctx_overflow" in one.name or "1mb" in one.name) == (error.code == "context_length_exceeded")


SECRETS = "sk-canary-0123456789abcdef"


@table(
    "message",
    [
        "connect to http://10.0.0.7:8000/v1 failed",
        "connect to https://me:secret@lab.example/x?key=1 failed",
        "dial tcp 10.0.0.7:8000: refused",
        "dial tcp [fe80::1:2]:8000: refused",
        "no route to lab.internal:8000",
        "no route to localhost:8000",
        "open /home/me/models/x.gguf: no such file",
        "at 0x7fffdeadbeef",
        f"bad key {SECRETS}",
        f"Authorization: Bearer {SECRETS}",
        "header X-Team: team-canary-42 is wrong",
        "<b>oops</b> <a href='http://10.0.0.7/'>here</a>",
        "<!DOCTYPE html><html><body>oops",
    ],
)
@table("status", [400, 404, 413, 429, 500, 501, 503])
def test_secrets_of_the_upstream_are_redacted(message: str, status: int) -> None:
    secrets = (SECRETS, "team-canary-42", "e")
    error = map_upstream_error(status, {}, error_body(message, param=message, code=message), secrets=secrets)
    body = error.body().decode()
    hidden = ("10.0.0.7", "fe80", "lab.", "8000", "/home", "0x7f", "canary", "secret", "<b", "<a", "<html", "DOCTYPE")
    assert [one for one in hidden if one in body] == []


def test_a_long_message_is_truncated_quickly() -> None:
    for text in ("x" * 65_000, "[" + ":" * 65_000, "a." * 30_000, "/a" * 30_000, "<" * 65_000, "input len" * 7_000):
        assert len(map_error(400, error_body(text)).message) <= 400
        assert len(map_error(500, error_body(text)).message) <= 450


@table(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("99999999999999999999", None),
        ("٣", None),
        ("Tue, 99 Nov 2023 22:13:00 GMT", None),
    ],
)
def test_retry_after_is_parsed_as_seconds_or_as_a_date(text: str, seconds: float | None) -> None:
    assert read_retry_after(text, lambda: NOON) == seconds


@table("status", [429, 502, 503, 504])
def test_retry_after_is_forwarded(status: int) -> None:
    assert map_error(status, retry_after="17").retry_after_s == 17
    assert map_error(status).retry_after_s == 1  # the default


def test_a_rate_limit_keeps_its_code() -> None:
    assert map_error(429, error_body("You have no money.", code="insufficient_quota")).code == "insufficient_quota"


@table(
    ("status", "fault", "another"),
    [
        (302, True, True),
        (400, False, False),
        (401, True, True),
        (402, True, True),
        (403, False, True),
        (404, False, False),
        (408, False, False),
        (422, False, False),
        (429, False, True),
        (500, True, True),
        (501, False, False),
        (502, True, True),
        (503, True, True),
        (504, True, True),
        (529, True, True),
    ],
)
def test_fault_and_retry_by_status(status: int, fault: bool, another: bool) -> None:
    assert (is_upstream_fault(status), is_retryable_status(status)) == (fault, another)


@table(
    ("status", "code", "fault", "another"),
    [
        (503, "queue_timeout", False, False),
        (503, "server_busy", False, True),
        (503, "shutting_down", True, True),
        (503, "model_loading", True, True),
        (500, "queue_timeout", True, True),
    ],
)
def test_an_overloaded_welldone_server_is_not_at_fault(status: int, code: str, fault: bool, another: bool) -> None:
    body = json.dumps({"error": {"message": "Try again later.", "code": code}}).encode()
    assert (is_upstream_fault(status, body), is_retryable_status(status, body)) == (fault, another)
    error = map_upstream_error(status, {"retry-after": "7"}, body)
    assert (error.code == code) == (not fault)
    assert error.retry_after_s == (7 if status == 503 else None)


@table(
    ("error", "status", "code"),
    [
        (error_mapping.upstream_unreachable("no connection to the server"), 502, "upstream_unreachable"),
        (error_mapping.upstream_unreachable(), 502, "upstream_unreachable"),
        (error_mapping.upstream_disconnected("the reply is not HTTP"), 502, "upstream_died"),
        (error_mapping.upstream_disconnected("see http://10.0.0.7/ for more"), 502, "upstream_died"),
        (error_mapping.upstream_timeout(1.5), 504, "timeout"),
        (error_mapping.empty_reply().error, 502, "incomplete_stream"),
        (error_mapping.compressed_reply().error, 502, "upstream_unreadable"),
        (error_mapping.unrecognized_reply().error, 502, "upstream_unreadable"),
        (error_mapping.reply_too_large().error, 502, "upstream_unreadable"),
    ],
)
def test_each_kind_of_missing_response_has_its_own_error(error: ApiError, status: int, code: str) -> None:
    assert (error.status, error.code) == (status, code)
    assert error.message.endswith(".")
    assert "10.0.0.7" not in error.message


def test_a_busy_engine_has_a_retry_after() -> None:
    assert error_mapping.map_engine_error(429, b"", retry_after="9").retry_after_s == 9
    assert error_mapping.map_engine_error(429, b"", retry_after="x").retry_after_s == 1


def test_an_input_longer_than_a_batch_is_a_client_error() -> None:
    message = "input (4003 tokens) is too large to process. increase the physical batch size (current batch size: 2048)"
    body = json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()
    error = error_mapping.map_engine_error(500, body, "documents")
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "documents")
    assert "2048" in error.message
    assert "4003" in error.message
