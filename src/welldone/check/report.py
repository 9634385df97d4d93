"""The report of a check: verdicts by probe and by rule, findings and cost. Every output format is rendered from it."""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

import msgspec

from welldone.core.catalog import RULES
from welldone.rules.judge import LintFinding

VERSION = 2
"""Version of the JSON form. A new version is needed when a field changes its meaning or goes; new fields may come."""


CLIENT_LIBRARIES = {"opencode": "ai-sdk", "claude-code": "anthropic-sdk-typescript"}
"""Programs that read streams with another client's library."""
_CLIENT_WITH_VARIANT = re.compile(r"AI SDK\b|(?:openai-(?:python|node)|anthropic-sdk-(?:python|typescript))\b")
"""The beginning of a name such as `AI SDK openai` or `openai-python .stream()`."""

KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")


def group_by(items: Iterable[ItemT], key: Callable[[ItemT], KeyT]) -> dict[KeyT, list[ItemT]]:
    """The items by key, in their order."""
    groups: dict[KeyT, list[ItemT]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def affected_clients(affects: Iterable[str]) -> set[str]:
    """Profile names of the clients in `client: effect`."""
    names = [effect.partition(":")[0] for effect in affects]
    variants = [(name, _CLIENT_WITH_VARIANT.match(name)) for name in names]
    return {name.lower() if variant is None else variant[0].lower().replace(" ", "-") for name, variant in variants}


def rules_for_client(client: str) -> frozenset[str]:
    """Ids of the rules that affect a client."""
    name = CLIENT_LIBRARIES.get(client, client)
    return frozenset(rule.id for rule in RULES.values() if name in affected_clients(rule.affects))


class Verdict(StrEnum):
    """The verdict on a probe, a rule or a server."""

    PASS = "pass"
    WARN = "warn"
    """Only rules that are advice are broken."""
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    """The server refuses the request or lacks the feature."""
    NOT_APPLICABLE = "not_applicable"
    """No reply contained what the rule is about."""
    ERROR = "error"
    """Answers ended in an error, and what arrived breaks advice at most."""
    TIMED_OUT = "timed_out"
    """A reply was incomplete at the timeout, and what arrived breaks no rule. The real verdict is unknown."""

    @property
    def label(self) -> str:
        """The verdict as printed."""
        return self.value.replace("_", " ")


class Finding(LintFinding, frozen=True, kw_only=True):
    """A rule broken in one probe: the first violation, and the number of violations."""

    probe: str
    request: int
    """Number of the probe's request, from 1."""
    count: int
    """Violations of the rule in this probe."""
    reproduce: str
    """The `welldone check` command that repeats the probe."""
    curl: str | None
    """The same request as a curl command; None where it is too long for a line."""
    trace: str | None = None
    """File of the recorded reply, with `--record`."""
    is_new: bool = True
    """False where the baseline has it too."""


class Cause(msgspec.Struct, frozen=True):
    """A cause of findings, or of answers that ended in an error, as a sentence."""

    sentence: str
    """What the server does, in which replies, and whether the same requests are right in the other form."""
    change: str
    """What to change in the server."""
    rules: tuple[str, ...]
    severity: str
    command: str | None
    """One request that shows it: a curl command, or that of `welldone check`."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one probe."""

    name: str
    description: str
    verdict: Verdict
    reason: str = ""
    """Why it is unsupported, not applicable or timed out, or the error in which an answer ended."""
    requests: int
    rules: int
    """Number of rules that were judged."""
    broken: tuple[str, ...]
    """Ids of the broken rules."""
    failed_answers: int = 0
    """Answers that ended in an error."""
    is_incomplete: bool = False
    """Whether a reply is missing or incomplete. The run does not pass then."""
    is_timed_out: bool = False
    """Whether the timeout was the reason."""
    causes: tuple[str, ...] = ()
    """The root causes among `broken`."""
    seconds: float


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one rule over all probes."""

    id: str
    summary: str
    """The rule as a sentence."""
    severity: str
    verdict: Verdict
    reason: str = ""
    """Why it is unsupported or not applicable."""
    probes: tuple[str, ...]
    """The probes in which the rule is broken; if there are none, those that judged it."""


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, tokens and time of a run."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    is_counted: bool
    """False where replies lack usage, and their tokens are estimated."""
    seconds: float


class Prescription(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a gateway that make the server right for its clients, and what a check through it found."""

    toml: tuple[str, ...]
    """The lines of the table `[upstreams.NAME]`."""
    after: tuple[str, ...] = ()
    """Ids of the rules that are broken through the gateway."""
    left: tuple[str, ...] = ()
    """In plain words what only the server can change."""
    unjudged: tuple[str, ...] = ()
    """Ids of the rules that were judged without the gateway, and not through it."""
    problem: str = ""
    """Why there was no check through the gateway."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Report on one server."""

    version: int = VERSION
    tool: str
    """The version of welldone."""
    date: str
    """Start of the run, as ISO 8601 in UTC."""
    url: str
    model: str
    server: str
    """The kind of server, from its model list or its `Server` header; empty if unknown."""
    endpoint: str = "chat"
    """The dialect that was checked. `chat` includes completions."""
    profile: str | None
    """The client to whose rules the check was limited."""
    is_strict: bool
    verdict: Verdict
    passed: bool
    """Whether the exit code is 0. It depends on `verdict`, `is_strict` and the baseline; an interrupted run and a run
    with missing replies do not pass."""
    headline: str = ""
    """The result in a sentence: the first line of every format."""
    answers: int = 0
    """Replies to requests that a server must answer, without refusals."""
    failed_answers: int = 0
    """Those of them that ended in an error."""
    failures: tuple[str, ...] = ()
    """The messages of these errors, the most frequent first."""
    hang: str = ""
    """What happened to a server that answered at first and then no more. The probes after that are missing."""
    stale: tuple[str, ...] = ()
    """Rules of the baseline that are judged and no longer broken. The run does not pass until they are removed."""
    timeout_s: float = 60.0
    """Timeout of a reply."""
    is_interrupted: bool = False
    """Whether the run was interrupted. The report covers what was done by then."""
    is_partial: bool = False
    """Whether probes did not run: the run was interrupted, or the server stopped to answer."""
    docs_url: str = ""
    """Address of the documentation site, which has a page per rule; empty if it is not known."""
    cost: RunCost
    causes: tuple[Cause, ...] = ()
    """What decides the result, the most important first."""
    probes: tuple[ProbeResult, ...]
    rules: tuple[RuleResult, ...]
    findings: tuple[Finding, ...]
    """One for each rule and probe, by severity, then in the order of the rules and the probes."""
    prescription: Prescription | None = None
    """With `--prescribe`."""

    def count(self, verdict: Verdict) -> int:
        """Number of rules with that verdict."""
        return sum(rule.verdict is verdict for rule in self.rules)

    @property
    def findings_by_rule(self) -> dict[str, list[Finding]]:
        """Findings by rule id, in report order."""
        return group_by(self.findings, lambda finding: finding.rule)

    @property
    def root_causes(self) -> dict[str, list[Finding]]:
        """Findings of the broken rules with at least one root cause, root causes first."""
        by_rule = {rule: sorted(findings, key=_has_cause) for rule, findings in self.findings_by_rule.items()}
        return {rule: findings for rule, findings in by_rule.items() if not _has_cause(findings[0])}

    def consequences(self, cause: str) -> str:
        """Ids of the broken rules that are no root cause anywhere and follow from `cause` somewhere, with commas."""
        by_rule = {rule: {finding.cause for finding in findings} for rule, findings in self.findings_by_rule.items()}
        return ", ".join(rule for rule, causes in by_rule.items() if None not in causes and cause in causes)

    def rule_url(self, rule: str) -> str:
        """The address of the rule's page; empty if it is not known."""
        return f"{self.docs_url.rstrip('/')}/rules/{rule}/" if self.docs_url else ""

    def rule_summary(self, rule: str) -> str:
        """The rule as a sentence; empty if the report does not list it."""
        return next((result.summary for result in self.rules if result.id == rule), "")


def _has_cause(finding: Finding) -> bool:
    return finding.cause is not None
