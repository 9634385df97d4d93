"""Resolution of model names to upstreams."""

import re
from collections.abc import Mapping, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tests.gateway.upstreams import NOWHERE, models, upstream
from tests.table import table
from welldone.config.settings import matches_wildcard
from welldone.config.upstream import UpstreamSettings
from welldone.core.json_budget import run_to_completion
from welldone.gateway.routing import (
    LocalRoute,
    ModelRouter,
    RouteTarget,
    UpstreamGroup,
    parse_route_target,
    route_problems,
)
from welldone.gateway.upstream import Upstream


def _found(
    name: str, upstreams: Sequence[Upstream], routes: Mapping[str, Sequence[str]] | None = None, local: str = ""
) -> list[str] | str | None:
    """The targets of a name as `model@upstream`; a local model as its name."""
    resolved = ModelRouter(routes or {}, upstreams, local.split()).resolve(name)
    if isinstance(resolved, UpstreamGroup):
        assert resolved.name == name
        return [f"{member.model}@{member.upstream.name}" for member in resolved.members]
    return resolved.name if isinstance(resolved, LocalRoute) else None


@example("a*b*b", "ab")
@example("a*a", "a")
@given(st.text("ab*?[", max_size=8), st.text("ab?[\n", max_size=8))
def test_a_wildcard_matches_any_characters(pattern: str, name: str) -> None:
    expected = ".*".join(map(re.escape, pattern.split("*")))
    assert matches_wildcard(pattern, name) == bool(re.fullmatch(expected, name, re.DOTALL))


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=4), st.data())
def test_a_name_built_from_a_pattern_matches_it(parts: list[str], data: st.DataObject) -> None:
    name = "".join(part + data.draw(st.text("ab", max_size=3)) for part in parts[:-1]) + parts[-1]
    assert matches_wildcard("*".join(parts), name)


@table(
    ("text", "target"),
    [
        ("m@lab", RouteTarget("m", "lab")),
        ("m", RouteTarget("m", None)),
        ("@lab", RouteTarget("", "lab")),
        ("*@lab", RouteTarget("", "lab")),
        ("m@1", RouteTarget("m@1", None)),
        ("m@1@lab", RouteTarget("m@1", "lab")),
        ("m@lab@", RouteTarget("m@lab@", None)),
    ],
)
def test_a_target_is_split_at_the_last_at_sign_before_an_upstream(text: str, target: RouteTarget) -> None:
    assert parse_route_target(text, ["lab"]) == target


_LAB = ("small", "large")


@table(
    ("name", "expected"),
    [
        ("gpt", ["small@lab"]),  # routes come first
        ("home", "home"),  # local models come before upstreams
        ("small", ["small@lab", "small@shed"]),
        ("large", ["large@lab"]),
        ("gpt-4", ["large@lab"]),  # a route pattern
        ("gpt-4o", ["gpt-4o@shed"]),  # the longer pattern
        ("claude-1", ["claude-1@cloud"]),  # a declared pattern
        ("nobody", None),
    ],
)
def test_the_order_of_resolution(name: str, expected: list[str] | str | None) -> None:
    upstreams = [
        upstream("lab", listed=[*_LAB, "home"]),
        upstream("shed", listed=["small", "gpt"]),
        upstream("cloud", models=("claude-*",)),
    ]
    routes = {"gpt": ["small@lab"], "gpt-*": ["large@lab"], "gpt-4*o": ["@shed"]}
    assert _found(name, upstreams, routes, local="home") == expected


def test_an_unknown_name_goes_to_upstreams_without_a_model_list() -> None:
    silent, other, declaring = upstream("silent"), upstream("other"), upstream("declaring", models=("d",))
    assert _found("m", [silent, other, declaring]) == ["m@silent", "m@other"]
    assert _found("m", [silent, upstream("lab", listed=["m"])]) == ["m@lab"]
    assert _found("m", [silent, upstream("cloud", models=("*",))]) == ["m@cloud"]
    assert _found("m", [upstream("empty", listed=[])]) is None


def test_a_model_that_is_no_longer_listed_is_not_resolved() -> None:
    lab = upstream("lab", listed=["m", "n"])
    names = ModelRouter({}, [lab], [])
    assert names.resolve("m") is not None
    run_to_completion(lab.record_model_list_in_steps(models({"id": "n"})))
    assert names.resolve("m") is None


def test_declared_patterns_filter_the_listed_models() -> None:
    lab = upstream("lab", listed=["qwen-7b", "whisper"], models=("qwen-*", "extra"))
    assert _found("qwen-7b", [lab]) == ["qwen-7b@lab"]
    assert _found("extra", [lab]) == ["extra@lab"]
    assert _found("whisper", [lab]) is None
    assert list(ModelRouter({}, [lab], []).exact_names()) == ["extra", "qwen-7b"]


def test_the_longest_declared_pattern_wins_and_equal_ones_share() -> None:
    upstreams = [upstream("all", models=("*",)), upstream("a", models=("gpt-*", "x")), upstream("b", models=("gp*-",))]
    assert _found("gpt-", upstreams) == ["gpt-@a"]
    assert _found("gp-", upstreams) == ["gp-@b"]
    assert _found("y", upstreams) == ["y@all"]
    assert _found("gpt-4", [*upstreams, upstream("c", models=("*pt-4",))]) == ["gpt-4@a", "gpt-4@c"]


def test_of_route_patterns_of_equal_length_the_first_wins() -> None:
    lab = upstream("lab", listed=[])
    assert _found("ab", [lab], {"a*": ["first@lab"], "*b": ["second@lab"]}) == ["first@lab"]
    assert _found("ab", [lab], {"*b": ["second@lab"], "a*": ["first@lab"]}) == ["second@lab"]


@table(
    ("targets", "expected"),
    [
        (["m@lab"], ["m@lab"]),
        (["m@lab", "n@shed", "m@lab"], ["m@lab", "n@shed"]),
        (["n"], ["n@lab", "n@shed"]),
        (["n", "m"], ["n@lab", "n@shed", "m@lab"]),
        (["@shed"], ["fast@shed"]),
        (["home"], "home"),
        (["fast"], None),  # a target is not looked up among the routes
        (["nobody"], None),
        (["other"], None),
    ],
)
def test_a_route_resolves_to_its_targets(targets: list[str], expected: list[str] | str | None) -> None:
    upstreams = [upstream("lab", listed=["m", "n"]), upstream("shed", listed=["n"])]
    assert _found("fast", upstreams, {"fast": targets, "other": ["m@lab"]}, local="home") == expected


def test_exact_names_are_those_of_routes_then_of_upstreams() -> None:
    upstreams = [upstream("lab", listed=["m"], models=()), upstream("shed", models=("n", "x-*")), upstream("silent")]
    assert list(ModelRouter({"r": ["m"], "p-*": ["m"]}, upstreams, []).exact_names()) == ["r", "m", "n"]


@table(
    ("routes", "expected"),
    [
        ({"a": ["m@lab", "@lab", "*@lab", "m", "m@2"], "b": ["home"]}, []),
        ({"a": []}, ["the route 'a' has no target"]),
        ({"a": ["m@lap"]}, ["the route 'a' has the target 'm@lap': there is no upstream 'lap' (did you mean 'lab'?)"]),
        ({"a": ["*@xyz"]}, ["the route 'a' has the target '*@xyz': there is no upstream 'xyz'"]),
        ({"a": ["@xyz"]}, ["the route 'a' has the target '@xyz': there is no upstream 'xyz'"]),
        (
            {"a": [""]},
            ["the route 'a' has the target '': expected MODEL@UPSTREAM, MODEL or @UPSTREAM, without patterns"],
        ),
        (
            {"a": ["q-*@lab", "*"]},
            [
                "the route 'a' has the target 'q-*@lab': expected MODEL@UPSTREAM, MODEL or @UPSTREAM, without patterns",
                "the route 'a' has the target '*': expected MODEL@UPSTREAM, MODEL or @UPSTREAM, without patterns",
            ],
        ),
        ({"a": ["m", "home"]}, ["the route 'a' has the target 'home': a local model must be the only target"]),
    ],
)
def test_invalid_routes_are_reported(routes: dict[str, list[str]], expected: list[str]) -> None:
    lab = UpstreamSettings(name="lab", url=NOWHERE, models=("m@2", "*"))
    assert route_problems(routes, [lab], ["home"]) == expected


@table(
    ("declared", "target", "problem"),
    [
        ([("qwen-7b", "phi-*")], "qwen-7b", None),
        ([("qwen-7b", "phi-*")], "phi-4", None),
        ([("qwen-7b",), ()], "qwen-8b", None),  # an upstream without `models =` may list it
        ([("qwen-7b",)], "qwen-8b@lab0", None),  # an explicit upstream is not checked
        ([("qwen-7b",)], "home", None),
        ([("qwen-7b",), ("phi-*",)], "qwen-8b", "no upstream has a model of this name (did you mean 'qwen-7b'?)"),
        ([], "hom", "no upstream has a model of this name (did you mean 'home'?)"),
        ([], "xyz", "no upstream has a model of this name"),
    ],
)
def test_a_route_to_a_model_that_no_upstream_can_have_is_an_error(
    declared: list[tuple[str, ...]], target: str, problem: str | None
) -> None:
    upstreams = [UpstreamSettings(name=f"lab{n}", url=NOWHERE, models=models) for n, models in enumerate(declared)]
    expected = [] if problem is None else [f"the route 'a' has the target {target!r}: {problem}"]
    assert route_problems({"a": [target]}, upstreams, ["home"]) == expected


@given(st.text("ab@*", max_size=6), st.lists(st.text("ab@*", max_size=6), max_size=3), st.text("ab@*", max_size=6))
def test_any_route_resolves_to_members_or_none(route: str, targets: list[str], name: str) -> None:
    names = ModelRouter({route: targets}, [upstream("a", listed=["b"]), upstream("b", models=("a*",))], ["aa"])
    resolved = names.resolve(name)
    assert resolved is None or isinstance(resolved, LocalRoute) or resolved.members
