"""Every rule is judged by some probe, or is listed as out of reach with its reason."""

from collections.abc import Sequence

import pytest

from welldone.check import session
from welldone.check.dialect import DIALECTS
from welldone.check.occasions import UNHEARD, why_unheard
from welldone.check.probe import Probe
from welldone.check.probes import PROBES_OF
from welldone.check.profiles import BUILT_ON, CLIENTS, rules_of
from welldone.check.reach import OUT_OF_REACH
from welldone.check.run import wanted_rules
from welldone.check.settings import CheckSettings
from welldone.rules.checks import RULES
from welldone.wire.faults import Hearing
from welldone.wire.faults.catalogue import ALL, BY_ID

OF_EVERY_REPLY = {session.REFUSED_4XX, session.KEEPALIVE}
"""What the session holds by itself, for every reply of every probe."""


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_every_rule_that_takes_a_probe_has_one_or_is_out_of_reach(endpoint: str) -> None:
    wanted = wanted_rules(CheckSettings(url="http://127.0.0.1:1/v1", endpoint=endpoint))
    probed = {rule for probe in PROBES_OF[endpoint] for rule in probe.rules} | OF_EVERY_REPLY
    by_probe = {fault.id for fault in ALL if fault.by is Hearing.PROBE}
    assert wanted & by_probe == wanted & (probed | OUT_OF_REACH.keys())
    assert not probed & OUT_OF_REACH.keys()


def test_every_rule_belongs_to_a_dialect() -> None:
    settings = [CheckSettings(url="http://127.0.0.1:1/v1", endpoint=endpoint) for endpoint in DIALECTS]
    assert frozenset(BY_ID) == frozenset().union(*map(wanted_rules, settings))


def test_every_other_rule_is_judged_on_every_reply() -> None:
    assert {fault.id for fault in ALL if fault.by is Hearing.REPLY} == {rule.fault.id for rule in RULES}


@pytest.mark.parametrize("probes", PROBES_OF.values(), ids=PROBES_OF.keys())
def test_names_of_probes_are_their_own_and_can_be_typed(probes: Sequence[Probe]) -> None:
    names = [probe.name for probe in probes]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in names)
    assert all(probe.says and not probe.says.endswith(".") for probe in probes)


def test_why_a_rule_was_not_heard_is_said_by_the_longest_beginning() -> None:
    assert why_unheard("ext-logprobs-shape") == "no logprobs were heard"
    assert why_unheard("err-retry-after") == "the server was never too busy"
    assert why_unheard("http-content-type") == "no reply gave an occasion"
    assert all(any(rule.startswith(beginning) for rule in BY_ID) for beginning in UNHEARD)


def test_every_profile_has_rules() -> None:
    assert all(len(rules_of(client)) >= 3 for client in (*CLIENTS, *BUILT_ON))
    assert rules_of("opencode") == rules_of("ai-sdk")
    assert {"msg-start-first", "sse-no-bom"} & rules_of("claude-code")
