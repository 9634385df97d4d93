"""The form of a violation: what is wrong, and which clients that affects."""

from tests.matrix.build import ABSENT, every, every_choice
from tests.matrix.cases import CASES
from tests.table import table
from welldone.check.report import affected_clients
from welldone.core.catalog import RULES, Kind, Rule, Severity
from welldone.rules.judge import LintFinding, judge
from welldone.rules.trace import Trace


def _first(rule: str, body: bytes) -> LintFinding:
    return judge(Trace(body=body, status=200), {rule}).findings[0]


@table(
    ("rule", "body", "form"),
    [
        ("env-created-int", every(created=ABSENT), "missing"),
        ("env-created-int", every(created=None), "null"),
        ("env-created-int", every(created="1600000000"), "wrong type: string"),
        ("env-created-int", every(created=1600000000.5), "wrong type: fraction"),
        ("env-created-int", every(created=1600000000000), "wrong value"),
        ("env-created-int", every(created=[]), "wrong value"),
        ("env-id-present", every(id=ABSENT), "missing"),
        ("env-id-present", every(id=""), "wrong value: empty"),
        ("env-id-present", every(id=7), "wrong type: integer"),
        ("env-id-present", every(id=7.5), "wrong type"),
        ("env-choices-array", every(choices=None), "null"),
        ("env-choices-array", every(choices={}), "wrong type"),
        ("n-index-int", every_choice(index=ABSENT), "missing"),
        ("n-index-int", every_choice(index="0"), "wrong type"),
        ("tool-args-string", CASES["tool.args_object"], "wrong type: object"),
        ("tool-args-string", CASES["tool.args_null_first"], "null"),
        ("ext-reasoning-field", CASES["reasoning.both"], "twice"),
        ("delta-role-once", CASES["role.repeated"], None),
    ],
)
def test_a_finding_has_the_form_of_its_violation(rule: str, body: bytes, form: str | None) -> None:
    finding = _first(rule, body)
    known = RULES[rule].forms["any" if form is None else form]
    assert (finding.form, finding.severity, finding.affects) == (form, known.severity, known.affects)
    assert finding.kind == (known.kind or RULES[rule].kind)


@table(
    ("rule", "body", "clients"),
    [
        ("env-created-int", every(created=ABSENT), set()),
        ("env-created-int", every(created=None), {"openai-dotnet"}),
        ("env-created-int", every(created="1600000000"), {"ai-sdk", "go-openai"}),
        ("env-created-int", every(created=1600000000.5), {"go-openai", "openai-dotnet"}),
        ("env-created-int", every(created=1600000000000), {"async-openai"}),
        ("env-id-present", every(id=ABSENT), {"async-openai", "openai-node"}),
        ("env-id-present", every(id=7), {"ai-sdk", "async-openai", "litellm"}),
        ("delta-role-absent-later", CASES["role.null_later"], set()),
        ("delta-role-absent-later", CASES["role.empty_string_later"], {"ai-sdk", "zed"}),
        ("tool-later-fields-absent", CASES["tool.id_empty_later"], set()),
        ("tool-later-fields-absent", CASES["tool.name_null_later"], {"openai-python"}),
    ],
)
def test_a_finding_names_only_the_clients_that_its_form_affects(rule: str, body: bytes, clients: set[str]) -> None:
    finding = _first(rule, body)
    assert affected_clients(finding.affects) == clients
    assert (finding.severity == Severity.BREAKS) == bool(clients)


def test_reasoning_in_one_field_of_another_name_is_advice() -> None:
    body = CASES["reasoning.only_content"].replace(b"reasoning_content", b"reasoning")
    finding = _first("ext-reasoning-field", body)
    assert (finding.form, finding.kind, finding.severity) == ("any", Kind.ADVICE, Severity.TOLERATED)
    assert _first("ext-reasoning-field", CASES["reasoning.both"]).kind == Kind.BREAKS


@table("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_claim_was_measured_or_read(rule: Rule) -> None:
    assert "any" in rule.forms
    assert rule.kind is not Kind.BREAKS or rule.severity is Severity.BREAKS
    for form in rule.forms.values():
        assert form.evidence or form.severity is not Severity.BREAKS
        assert len({claim.client for claim in form.evidence}) == len(form.evidence)
        for claim in form.evidence:
            assert bool(claim.measured) != bool(claim.read)
            assert ":" not in claim.client
            assert claim.effect


@table(
    ("severity", "kind", "form", "label"),
    [
        ("breaks", "specified", "null", "breaks, specified (null)"),
        ("breaks", "breaks", None, "breaks"),
        ("style", "advice", "missing", "advice (missing)"),
    ],
)
def test_advice_is_printed_without_a_severity(severity: str, kind: str, form: str | None, label: str) -> None:
    assert LintFinding("x", severity, 1, 0, "", "", (), kind=kind, form=form).label == label


def test_a_rule_affects_the_clients_of_all_its_forms() -> None:
    forms = RULES["env-created-int"].forms.values()
    assert {*RULES["env-created-int"].affects} == {effect for form in forms for effect in form.affects} != set()
