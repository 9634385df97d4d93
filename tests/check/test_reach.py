"""Every rule is judged by some probe, or is listed as out of reach with its reason."""

from collections.abc import Sequence

import pytest

from welldone.check import session
from welldone.check.applicability import NOT_APPLICABLE_REASONS, UNCOVERED, not_applicable_reason
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.run import select_rules
from welldone.check.selection import CLIENT_LIBRARIES, CLIENTS, rules_for_client
from welldone.check.settings import DIALECTS, CheckSettings
from welldone.protocol.catalog import ALL_RULES, RULES_BY_ID
from welldone.protocol.catalog.rule import Detection
from welldone.rules.checks import ALL_CHECKS

OF_EVERY_REPLY = {session.REFUSED_4XX_RULE, session.KEEPALIVE_RULE}
"""What the session holds by itself, for every reply of every probe."""


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_every_rule_that_takes_a_probe_has_one_or_is_out_of_reach(endpoint: str) -> None:
    wanted = select_rules(CheckSettings(url="http://127.0.0.1:1/v1", endpoint=endpoint))
    probed = {rule for probe in PROBES_BY_DIALECT[endpoint] for rule in probe.rules} | OF_EVERY_REPLY
    by_probe = {fault.id for fault in ALL_RULES if fault.detection is Detection.PROBE}
    assert wanted & by_probe == wanted & (probed | UNCOVERED.keys())
    assert not probed & UNCOVERED.keys()


def test_every_rule_belongs_to_a_dialect() -> None:
    settings = [CheckSettings(url="http://127.0.0.1:1/v1", endpoint=endpoint) for endpoint in DIALECTS]
    assert frozenset(RULES_BY_ID) == frozenset().union(*map(select_rules, settings))


def test_every_other_rule_is_judged_on_every_reply() -> None:
    assert {fault.id for fault in ALL_RULES if fault.detection is Detection.REPLY} == {
        rule.rule.id for rule in ALL_CHECKS
    }


@pytest.mark.parametrize("probes", PROBES_BY_DIALECT.values(), ids=PROBES_BY_DIALECT.keys())
def test_names_of_probes_are_their_own_and_can_be_typed(probes: Sequence[Probe]) -> None:
    names = [probe.name for probe in probes]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in names)
    assert all(probe.description and not probe.description.endswith(".") for probe in probes)


def test_why_a_rule_was_not_heard_is_said_by_the_longest_beginning() -> None:
    assert not_applicable_reason("ext-logprobs-shape") == "no logprobs were heard"
    assert not_applicable_reason("err-retry-after") == "the server was never too busy"
    assert not_applicable_reason("http-content-type") == "no reply gave an occasion"
    assert all(any(rule.startswith(beginning) for rule in RULES_BY_ID) for beginning in NOT_APPLICABLE_REASONS)


def test_every_profile_has_rules() -> None:
    assert all(len(rules_for_client(client)) >= 3 for client in (*CLIENTS, *CLIENT_LIBRARIES))
    assert rules_for_client("opencode") == rules_for_client("ai-sdk")
    assert {"msg-start-first", "sse-no-bom"} & rules_for_client("claude-code")
