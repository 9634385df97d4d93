"""Every rule is judged by some probe, or is listed as out of reach with its reason."""

from welldone.check import session
from welldone.check.occasions import UNHEARD, why_unheard
from welldone.check.probes import PROBES
from welldone.check.profiles import BUILT_ON, CLIENTS, rules_of
from welldone.check.reach import OUT_OF_REACH
from welldone.rules.checks import RULES
from welldone.wire.faults import Hearing
from welldone.wire.faults.catalogue import ALL, BY_ID

OF_EVERY_REPLY = {session.REFUSED_4XX, session.KEEPALIVE}
"""What the session holds by itself, for every reply of every probe."""


def test_every_rule_that_takes_a_probe_has_one_or_is_out_of_reach() -> None:
    probed = {rule for probe in PROBES for rule in probe.rules} | OF_EVERY_REPLY
    assert {fault.id for fault in ALL if fault.by is Hearing.PROBE} == probed | OUT_OF_REACH.keys()
    assert not probed & OUT_OF_REACH.keys()


def test_every_other_rule_is_judged_on_every_reply() -> None:
    assert {fault.id for fault in ALL if fault.by is Hearing.REPLY} == {rule.fault.id for rule in RULES}


def test_names_of_probes_are_their_own_and_can_be_typed() -> None:
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in names)
    assert all(probe.says and not probe.says.endswith(".") for probe in PROBES)


def test_why_a_rule_was_not_heard_is_said_by_the_longest_beginning() -> None:
    assert why_unheard("ext-logprobs-shape") == "no logprobs were heard"
    assert why_unheard("err-retry-after") == "the server was never too busy"
    assert why_unheard("http-content-type") == "no reply gave an occasion"
    assert all(any(rule.startswith(beginning) for rule in BY_ID) for beginning in UNHEARD)


def test_every_profile_has_rules() -> None:
    assert all(len(rules_of(client)) >= 3 for client in (*CLIENTS, *BUILT_ON))
    assert rules_of("opencode") == rules_of("ai-sdk")
