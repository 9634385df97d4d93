"""The report: what was asked of a server, what was heard, and what that is worth. All screens are drawn from it."""

from enum import StrEnum

import msgspec

VERSION = 1
"""Of the JSON form. A reader of version 1 may meet new members, but none that it knows changes its meaning."""


class Verdict(StrEnum):
    """What a probe, a rule or a whole server is worth."""

    PASS = "right"
    WARN = "lax"
    """Rules are broken, but none that is known to break a client."""
    FAIL = "wrong"
    UNSUPPORTED = "not offered"
    """The server says that it does not do this."""
    NOT_APPLICABLE = "not heard"
    """There was no occasion to judge it."""
    TIMED_OUT = "timed out"
    """A reply was not whole in time, and what came of it breaks no rule. Whether the server is right is not known."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that a probe heard broken: its first place, and how often."""

    rule: str
    severity: str
    """breaks, tolerated or style."""
    probe: str
    request: int
    """Which request of the probe, from 1."""
    frame: int | None
    """The number of the frame, from 1; None where it is about the reply as a whole."""
    byte: int | None
    """Where that frame begins in the body."""
    observed: str
    expected: str
    count: int
    """How often the probe heard it."""
    affects: tuple[str, ...]
    """Whom it hurts and how, each as `client: what happens`."""
    reproduce: str
    """The command that shows it again."""
    curl: str | None
    """The same request by hand; None where it is too long for a line."""
    trace: str | None = None
    """The file of the recorded reply, where there is one."""
    is_new: bool = True
    """False where the baseline has it too."""
    cause: str | None = None
    """The rule whose breach in the same reply explains this one; None: nothing else explains it."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe came to."""

    name: str
    description: str
    """What it asks, in a line."""
    verdict: Verdict
    reason: str = ""
    """Why it was not offered or not heard."""
    requests: int
    rules: int
    """How many rules had a say in it."""
    broken: tuple[str, ...]
    """The rules that it heard broken."""
    is_incomplete: bool = False
    """Whether a reply did not come, or not to its end in time. Nothing is known of it then, and the run is no pass."""
    is_timed_out: bool = False
    """Whether that was for the time limit."""
    causes: tuple[str, ...] = ()
    """Those of `broken` that follow from no other."""
    seconds: float


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule came to, over all probes."""

    id: str
    summary: str
    """The rule as a sentence."""
    severity: str
    verdict: Verdict
    reason: str = ""
    """Why it was not offered or not heard."""
    probes: tuple[str, ...]
    """Those in which it had a say, or, where it is broken, those that heard it."""


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the run has cost the server."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    is_counted: bool
    """False where replies came without usage, and their tokens are estimated."""
    seconds: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to say about one server."""

    version: int = VERSION
    tool: str
    """The version of welldone."""
    date: str
    """When the run began, as ISO 8601 in UTC."""
    url: str
    model: str
    server: str
    """What the server calls itself; empty where it does not say."""
    endpoint: str = "chat"
    """The dialect that was checked; with chat the older completions are too."""
    profile: str | None
    """The client whose rules alone were judged."""
    is_strict: bool
    verdict: Verdict
    passed: bool
    """Whether the exit code is 0: by `verdict`, `is_strict`, and the baseline where there was one; and no reply was
    given up, and the run was not interrupted."""
    timeout_s: float = 60.0
    """How long a reply might take."""
    is_interrupted: bool = False
    """Whether the run was ended before all probes were done. The report has what was done by then."""
    cost: RunCost
    probes: tuple[ProbeResult, ...]
    rules: tuple[RuleResult, ...]
    findings: tuple[Finding, ...]
    """By severity, then in the order of the rules and the probes; one for each rule and probe."""

    def count(self, verdict: Verdict) -> int:
        """How many rules came to that verdict."""
        return sum(rule.verdict is verdict for rule in self.rules)

    @property
    def findings_by_rule(self) -> dict[str, list[Finding]]:
        """The findings of each rule, in the order in which they are shown."""
        by_rule: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_rule.setdefault(finding.rule, []).append(finding)
        return by_rule

    @property
    def root_causes(self) -> dict[str, list[Finding]]:
        """The findings of each broken rule that no other rule explains everywhere; those without a cause come first."""
        sorted_out = {rule: sorted(findings, key=_has_cause) for rule, findings in self.findings_by_rule.items()}
        return {rule: findings for rule, findings in sorted_out.items() if not _has_cause(findings[0])}

    def consequences(self, cause: str) -> list[str]:
        """The broken rules that are found only where that one explains them."""
        causes = {rule: {one.cause for one in findings} for rule, findings in self.findings_by_rule.items()}
        return [rule for rule, found in causes.items() if None not in found and cause in found]


def _has_cause(finding: Finding) -> bool:
    return finding.cause is not None
