"""Every rule is judged by a probe or a check, or is listed as uncovered with the reason."""

from collections.abc import Sequence

import pytest

from welldone.check import session
from welldone.check.api import CLIENTS
from welldone.check.applicability import CONDITIONS, UNCOVERED, not_applicable_reason
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import CLIENT_LIBRARIES, rules_for_client
from welldone.check.run import select_rules
from welldone.check.session import Probe
from welldone.check.settings import DIALECTS, CheckSettings
from welldone.core.catalog import FAMILIES, RULES, Detection

SESSION_RULES = {session.REFUSED_4XX_RULE, session.KEEPALIVE_RULE}
"""Rules that the session judges for every reply."""


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_every_probe_rule_has_a_probe_or_is_uncovered(endpoint: str) -> None:
    selected = select_rules(CheckSettings(url="http://127.0.0.1:1/v1", endpoint=endpoint))
    probed = {rule for probe in PROBES_BY_DIALECT[endpoint] for rule in probe.rules} | SESSION_RULES
    probe_rules = {rule.id for rule in RULES.values() if rule.detection is Detection.PROBE}
    probe_rules |= {"tool-no-markup-leak"}  # one reply is no proof with tool_choice auto; a probe knows its prompt
    assert selected & probe_rules == selected & (probed | UNCOVERED.keys())
    assert not probed & UNCOVERED.keys()


def test_every_rule_belongs_to_a_dialect() -> None:
    settings = [CheckSettings(url="http://127.0.0.1:1/v1", endpoint=endpoint) for endpoint in DIALECTS]
    assert frozenset(RULES) == frozenset().union(*map(select_rules, settings))


@pytest.mark.parametrize("probes", PROBES_BY_DIALECT.values(), ids=PROBES_BY_DIALECT.keys())
def test_probe_names_are_unique_and_simple(probes: Sequence[Probe]) -> None:
    names = [probe.name for probe in probes]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in names)
    assert all(probe.description and not probe.description.endswith(".") for probe in probes)


def test_a_rule_has_the_reason_of_its_condition_or_of_its_family() -> None:
    assert not_applicable_reason("ext-logprobs-shape") == "no reply had logprobs"
    assert not_applicable_reason("err-retry-after") == "the server was never overloaded"
    assert not_applicable_reason("http-content-type") == "no reply to which the rule applies"
    assert not_applicable_reason("use-whole-request") == "no reply had usage"
    assert not_applicable_reason("enc-no-lone-surrogate") == "no reply had text beyond ASCII"
    assert not_applicable_reason("enc-valid-utf8") == "no reply to which the rule applies"
    named = [rule for condition in CONDITIONS for rule in condition.rules.split()]
    assert {*named} <= {*RULES, *FAMILIES}
    assert len({*named}) == len(named)


def test_every_profile_has_rules() -> None:
    assert all(len(rules_for_client(client)) >= 3 for client in (*CLIENTS, *CLIENT_LIBRARIES))
    assert rules_for_client("opencode") == rules_for_client("ai-sdk")
    assert {"msg-start-first", "sse-no-bom"} & rules_for_client("claude-code")
