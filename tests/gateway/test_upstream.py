"""Health and model list of one upstream."""

import json
from typing import Any

import pytest

from tests.gateway.upstreams import SILENCE, Clock, models, status, upstream
from tests.table import table
from welldone.core.json_budget import run_to_completion
from welldone.gateway.model_list import LISTED_MODELS_LIMIT, MODEL_ID_LIMIT, ListedModel, parse_model_list
from welldone.gateway.upstream import COOLDOWN_MAX_S, FAILURE_THRESHOLD, OPEN_S, Upstream
from welldone.http.client import BufferedResponse
from welldone.http.connect import HttpClientError

KEY = "sk-planted-key"


def test_a_probe_that_failed_locally_is_ignored() -> None:
    lab = upstream()
    for _ in range(3):
        lab.record_probe(HttpClientError("no room", is_local_failure=True))
    assert lab.is_available
    assert lab.problem is None


def test_two_failed_probes_make_it_unhealthy_and_one_success_healthy() -> None:
    changes: list[tuple[bool, str | None]] = []
    lab = upstream(on_change=lambda it: changes.append((it.is_healthy, it.problem)))
    for reply in (models(), SILENCE, models(), status(503), models(), SILENCE):
        lab.record_probe(reply)
        assert lab.is_available
    assert changes == []
    lab.record_probe(SILENCE)
    assert not lab.is_available
    lab.record_probe(SILENCE)
    lab.record_probe(models())
    assert lab.is_available
    assert changes == [(False, _SILENT), (True, None)]


_SILENT = "the upstream cannot be reached: no connection to the server; check that it runs, and its URL"


def test_it_is_ready_after_a_successful_probe_while_it_is_healthy() -> None:
    lab = upstream(probe_s=5)
    ready = [lab.is_ready]
    for reply in (SILENCE, models(), SILENCE, SILENCE, models()):
        lab.record_probe(reply)
        ready.append(lab.is_ready)
    assert ready == [False, False, True, True, False, True]


def test_an_upstream_without_probes_is_ready() -> None:
    lab = upstream(probe_s=0)
    lab.record_probe(SILENCE)
    assert lab.is_ready


def test_the_first_failed_probe_reports_a_problem() -> None:
    changes: list[tuple[bool, str | None]] = []
    lab = upstream(on_change=lambda it: changes.append((it.is_healthy, it.problem)))
    for reply in (SILENCE, SILENCE, SILENCE, models()):
        lab.record_probe(reply)
    assert changes == [(True, _SILENT), (False, _SILENT), (True, None)]


@table(
    ("code", "health", "is_healthy"),
    [
        (200, "", True),
        (204, "/health", True),
        (401, "", True),
        (403, "/health", True),
        (404, "", True),
        (307, "", True),
        (404, "/health", False),
        (307, "/health", False),
        (500, "", False),
        (503, "/health", False),
    ],
)
def test_health_by_status(code: int, health: str, is_healthy: bool) -> None:
    lab = upstream(health=health, key=KEY)
    lab.record_probe(status(code))
    lab.record_probe(status(code))
    problem = None if is_healthy else f"the upstream is unhealthy (status {code}); see its log"
    assert (lab.is_healthy, lab.problem) == (is_healthy, problem)


_NO_LIST = "check the path of its URL, or name its models with models ="
_MANY = json.dumps([{"id": str(number)} for number in range(50_000)]).encode()


@table(
    ("reply", "settings", "problem"),
    [
        (models({"id": "m"}), {}, None),
        (status(401), {"key": KEY}, "the upstream rejects the key (status 401)"),
        (status(403), {"headers": {"Api-Key": KEY}}, "the upstream rejects the key (status 403)"),
        (status(401), {}, "the upstream requires a key: --upstream-key, or key = in the file (status 401)"),
        (status(404), {}, f"the upstream lists no models (status 404); {_NO_LIST}"),
        (
            status(307),
            {},
            "the upstream redirects (status 307), and redirects are not followed; check whether its URL needs https:// "
            "or another path",
        ),
        (
            BufferedResponse(200, {}, b"\n<!doctype html>"),
            {},
            f"the upstream returns a web page instead of its list of models; {_NO_LIST}",
        ),
        (
            BufferedResponse(200, {}, b'{"status": "ok"}'),
            {},
            f"the upstream returns something else instead of its list of models; {_NO_LIST}",
        ),
        (
            BufferedResponse(200, {}, _MANY),
            {},
            "the upstream lists 5,000 models or more; name further ones with models =",
        ),
        (models(), {}, "the upstream lists no models yet"),
        (models(), {"models": ("m",)}, None),
    ],
)
def test_problems_with_the_model_list_are_reported_once(
    reply: BufferedResponse, settings: dict[str, Any], problem: str | None
) -> None:
    changes: list[str | None] = []
    lab = upstream(on_change=lambda it: changes.append(it.problem), **settings)
    for _ in range(2):
        run_to_completion(lab.record_model_list_in_steps(reply))
        lab.record_probe(reply)
    assert (lab.is_healthy, changes) == (True, [] if problem is None else [problem])


@pytest.mark.parametrize("reply", [SILENCE, status(500), status(429)])
def test_a_failed_listing_keeps_the_last_problem(reply: BufferedResponse | HttpClientError) -> None:
    lab = upstream()
    run_to_completion(lab.record_model_list_in_steps(status(404)))
    before = lab.problem
    run_to_completion(lab.record_model_list_in_steps(reply))
    assert (lab.problem, lab.problem is None) == (before, False)


def test_retry_after_causes_a_cooldown() -> None:
    clock = Clock()
    lab = upstream(clock=clock)
    lab.start_cooldown(5)
    lab.start_cooldown(1)
    assert (lab.is_available, lab.retry_after_s) == (False, 5)
    clock.now = 5
    assert (lab.is_available, lab.retry_after_s) == (True, 0)
    lab.start_cooldown(1e9)
    assert lab.retry_after_s == COOLDOWN_MAX_S


def test_an_open_breaker_makes_it_unavailable_and_is_reported() -> None:
    changes: list[Upstream] = []
    lab = upstream(on_change=changes.append)
    for _ in range(FAILURE_THRESHOLD):
        lab.breaker.record_failure()
    assert (lab.is_available, lab.is_healthy, lab.retry_after_s, changes) == (False, True, OPEN_S, [lab])


def test_an_unhealthy_upstream_may_be_back_at_the_next_probe() -> None:
    lab = upstream(probe_s=7.0)
    lab.record_probe(SILENCE)
    lab.record_probe(SILENCE)
    assert lab.retry_after_s == 7.0


@table(
    ("owner", "kind", "is_native"),
    [
        ("vllm", "vllm", True),
        ("sglang", "sglang", True),
        ("openai", "openai", True),
        ("system", "openai", True),
        ("llamacpp", "llamacpp", False),
        ("library", "ollama", False),
        ("somebody", "", False),
        (None, "", False),
        (["vllm"], "", False),
    ],
)
def test_native_n_by_kind_of_server(owner: object, kind: str, is_native: bool) -> None:
    reply = models({"id": "m", "owned_by": owner})
    for n, makes_choices in (("auto", is_native), ("native", True), ("each", False)):
        lab = upstream(n=n)
        run_to_completion(lab.record_model_list_in_steps(reply))
        assert (lab.kind, lab.supports_native_n) == (kind, makes_choices)


def test_openai_is_detected_by_its_host() -> None:
    assert upstream(url="https://api.openai.com/v1").supports_native_n


def test_a_replaced_server_is_detected_again() -> None:
    lab = upstream()
    for owner, kind in (("vllm", "vllm"), ("somebody", "vllm"), ("llamacpp", "llamacpp")):
        run_to_completion(lab.record_model_list_in_steps(models({"id": "m", "owned_by": owner})))
        assert lab.kind == kind


def test_the_last_model_list_stays_until_there_is_a_new_one() -> None:
    lab = upstream()
    assert (lab.listed_models, lab.listed_model("m")) == (None, None)
    run_to_completion(lab.record_model_list_in_steps(models({"id": "m"})))
    for reply in (SILENCE, status(500), BufferedResponse(200, {}, b"<html>"), BufferedResponse(404, {}, models().body)):
        run_to_completion(lab.record_model_list_in_steps(reply))
        assert lab.listed_models == (ListedModel("m", {"id": "m"}),)
    run_to_completion(lab.record_model_list_in_steps(models()))
    assert lab.listed_models == ()


@table(
    "body",
    [
        b"",
        b"null",
        b"1",
        b"{}",
        b'{"models": {}}',
        b'{"data": {}}',
        b'{"data": "m"}',
        b'{"data": [{"id": "\xff"}]}',
        b"[" * 100_000,
        b'{"data": [{"id": "m", "n": ' + b"1" * 5000 + b"}]}",
        b'{"data": [{"id": "m", "n": NaN}]}',
    ],
)
def test_a_body_that_is_not_a_list_is_none(body: bytes) -> None:
    assert parse_model_list(body) is None


@table(
    ("body", "names"),
    [
        (b"[]", []),
        (b'{"object": "list", "data": null}', []),
        (b'[{"id": "a"}, {"id": "b"}]', ["a", "b"]),
        (b'{"models": [{"name": "a:latest", "model": "a:latest"}, {"name": "b"}]}', ["a:latest", "b"]),
        (b'{"data": [{"id": "a"}], "models": [{"name": "b"}]}', ["a"]),
    ],
)
def test_other_formats_of_model_lists(body: bytes, names: list[str]) -> None:
    assert [model.id for model in parse_model_list(body) or ()] == names


@table("odd", [None, 1, "m", [], {}, {"id": 1}, {"id": ""}, {"id": "a\nb"}, {"id": "x" * 129}])
def test_invalid_items_of_a_list_are_skipped(odd: object) -> None:
    body = json.dumps({"data": [odd, {"id": "m"}, {"id": "m", "n": 2}, {"id": "x" * MODEL_ID_LIMIT}]}).encode()
    assert [model.extra_fields for model in parse_model_list(body) or ()] == [{"id": "m"}, {"id": "x" * MODEL_ID_LIMIT}]


def test_the_length_of_a_list_is_limited() -> None:
    body = json.dumps({"data": [{"id": str(number)} for number in range(LISTED_MODELS_LIMIT + 1)]}).encode()
    assert len(parse_model_list(body) or ()) == LISTED_MODELS_LIMIT


def _object(fields: dict[str, Any], **settings: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON, and UpstreamSettings' own
    lab = upstream(**settings)
    run_to_completion(lab.record_model_list_in_steps(models({"id": "m", **fields})))
    listed = lab.listed_model("m")
    assert listed is not None
    return listed.as_model_object("n")


_BARE = {"id": "n", "object": "model", "created": 0, "owned_by": "upstream"}


def test_public_fields_of_a_model_are_forwarded() -> None:
    fields = {
        "created": 7,
        "owned_by": "vllm",
        "max_model_len": 4096,
        "parent": None,
        "root": "org/name",
        "meta": {"n_ctx": 512, "size": 1.5},
        "architecture": {"input_modalities": ["text", "image"]},
        "is_ready": True,
    }
    assert _object({**fields, "object": "thing"}) == {**fields, "id": "n", "object": "model"}


@table(
    "private",
    [
        "/models/m.gguf",
        "~/m",
        "C:\\models\\m",
        "http://10.0.0.1:8000/v1",
        "-m /models/m",
        "prose " * 100,
        "two\nlines",
        f"Bearer {KEY}",
        "header-value",
    ],
)
def test_paths_urls_long_texts_and_keys_are_removed(private: str) -> None:
    fields = {"root": private, "meta": {"path": private, private: 1}, "files": [private, 1], "owned_by": private}
    result = _object(fields, key=KEY, headers={"X-Key": "header-value"})
    assert result == {**_BARE, "meta": {}, "files": [1]}


@pytest.mark.parametrize("fields", [{"args": ["secret"]}, {"permission": [{"id": "p"}]}, {"preset": "p"}])
def test_command_lines_are_removed(fields: dict[str, Any]) -> None:
    assert _object(fields) == _BARE
    assert _object({"status": {"value": "loaded", **fields}}) == {**_BARE, "status": {"value": "loaded"}}


def test_a_key_that_is_a_common_word_hides_nothing() -> None:
    assert _object({"state": "none"}, key="none") == {**_BARE, "state": "none"}


def test_a_model_named_like_the_key_is_not_listed() -> None:
    lab = upstream(key=KEY)
    run_to_completion(lab.record_model_list_in_steps(models({"id": f"m-{KEY}"})))
    assert lab.listed_models == ()


@table("created", [True, "7", 1.5, None])
def test_created_is_a_number(created: object) -> None:
    assert _object({"created": created})["created"] == 0


def test_deep_and_long_values_are_truncated() -> None:
    assert _object({"a": {"b": {"c": {"d": {"e": 1}}}}})["a"] == {"b": {"c": {}}}
    assert _object({"a": [[[[1]]]]})["a"] == [[[]]]
    assert len(_object({"a": list(range(1000))})["a"]) == 64
    assert len(_object({"a": {str(number): 1 for number in range(1000)}})["a"]) == 64


@pytest.mark.parametrize("wrong", [{"url": "ftp://lab"}, {"url": "http://lab", "health": "/a b"}])
def test_an_invalid_url_or_path_is_rejected_without_showing_the_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"URL|path") as caught:
        upstream(**wrong, key=KEY)
    assert KEY not in str(caught.value)


def test_the_key_is_not_in_the_repr() -> None:
    lab = upstream(key=KEY, headers={"X-Key": KEY})
    assert KEY not in repr(lab) + repr(lab.settings) + repr(lab.address)
    assert (lab.address.key, lab.address.headers) == (KEY, (("X-Key", KEY),))
