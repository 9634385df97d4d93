"""The prescription: the table `[upstreams.NAME]` with which a gateway makes a checked server right for its clients.

`core/catalog/settings.json` has the knowledge: which findings a setting cures, and in plain words what only the
server can change.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import get_data
from typing import Any
from urllib.parse import urlsplit

import msgspec

from welldone.check.report import Prescription, Report, Verdict
from welldone.check.repro import AUTHORIZATION
from welldone.check.settings import CheckSettings
from welldone.core.finish_reasons import outcome_of
from welldone.reporting import pluralize

_JUDGED = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
_SHOWN_RULES = 5  # that the second check did not judge, in a warning


class _CuringSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a check reports of a server, and the setting that cures it."""

    rule: str
    """A broken rule; with `verdict` a rule or a probe that has this verdict."""
    key: str
    value: str | bool | list[str]
    """`["{model}"]` stands for the model of the check."""
    comment: str
    """What the server does, and the cost of the setting if it has one."""
    probes: tuple[str, ...] = ()
    """Names of the probes in which it must be broken, or patterns with `*`; empty: any."""
    right: tuple[str, ...] = ()
    """Probes that judged an answer, and in which no rule with this setting may be broken."""
    without: tuple[str, ...] = ()
    """Rules that must not be broken: then another setting cures both."""
    observed: str = ""
    """A pattern of what was observed. With a group, a JSON string, the setting is a table with it as a key."""
    verdict: str = ""

    def values(self, probe_name: str, observed: str, report: Report) -> dict[str, str | bool | list[str]]:
        """The value under an empty key, or keys and values of a table; empty if the setting does not apply."""
        match = re.search(self.observed, observed)
        rules = {row.rule for row in KNOWLEDGE.settings if row.key == self.key}
        right = {probe.name for probe in report.probes if probe.verdict in _JUDGED and not probe.reason}
        right -= {finding.probe for finding in report.findings if finding.rule in rules}
        is_in_probe = not self.probes or any(fnmatchcase(probe_name, name) for name in self.probes)
        is_cured = right.issuperset(self.right) and report.findings_by_rule.keys().isdisjoint(self.without)
        if match is None or not is_in_probe or not is_cured:
            return {}
        word = json.loads(match[1]) if match.groups() else ""
        is_known = outcome_of(word) is not None  # the gateway knows the word without a setting
        return {} if is_known else {word: [report.model] if self.value == ["{model}"] else self.value}


class _Knowledge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    settings: tuple[_CuringSetting, ...]
    left: Mapping[str, str]
    """What a server does that no setting cures, by rule."""


KNOWLEDGE = msgspec.json.decode(get_data("welldone.core", "catalog/settings.json") or b"", type=_Knowledge)


def prescribe(
    report: Report, settings: CheckSettings, useless: Collection[str] = ()
) -> tuple[list[str], dict[str, str], dict[str, list[str]]]:
    """Return the lines of the table, its environment variables, and the rules that each setting cures.

    Settings that are known to be `useless` are left out.
    """
    variables: dict[str, str] = {}

    def refer(header: str, value: str, name: str) -> str:
        variable = settings.env_variables.get(header) or re.sub(r"\W", "_", f"UPSTREAM_{name}").upper()
        variables[variable] = value
        return f"env:{variable}"

    headers = {header: refer(header, value, header) for header, value in settings.headers}
    table: dict[str, Any] = {
        "url": settings.url,
        "key": None if settings.key is None else refer(AUTHORIZATION, settings.key, "key"),
        "headers": headers or None,
        "ca_file": None if settings.ca_file is None else str(Path(settings.ca_file).resolve()),
        "insecure": None if settings.is_verified else True,
        "speaks": None if settings.endpoint == "chat" else [settings.endpoint],
    }
    rules: dict[str, list[str]] = {}
    comments: dict[str, str] = {}
    reported = [("", finding.rule, finding.probe, finding.observed) for finding in report.findings]
    reported += [(rule.verdict, rule.id, "", rule.reason) for rule in report.rules]
    reported += [(probe.verdict, probe.name, probe.name, probe.reason) for probe in report.probes]
    for row in KNOWLEDGE.settings:
        for verdict, rule, probe, observed in reported:
            if (verdict, rule) != (row.verdict, row.rule) or row.key in useless:
                continue
            for word, value in row.values(probe, observed, report).items():
                if word:
                    table.setdefault(row.key, {}).setdefault(word, value)
                else:
                    table.setdefault(row.key, value)
                comments.setdefault(row.key, row.comment)
                rules[row.key] = list(dict.fromkeys([*rules.get(row.key, ()), row.rule]))
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", urlsplit(settings.url).netloc).strip("-")
    lines = [f"[upstreams.{name}]"]
    for key, value in table.items():
        comment = f"  # {', '.join(rules[key])}: {comments[key]}" if key in rules else ""
        lines += [] if value is None else [f"{key} = {_toml(value)}{comment}"]
    return [settings.secrets.redact(line) for line in lines], variables, rules


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(item)}' for key, item in value.items())} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def useless_settings(rules: Mapping[str, Collection[str]], before: Report, after: Report) -> set[str]:
    """The settings with which each of their rules is broken in as many probes as without."""
    then, now = ({rule: len(findings) for rule, findings in run.findings_by_rule.items()} for run in (before, after))
    return {key for key, cured in rules.items() if all(now.get(rule, 0) >= then.get(rule, 1) for rule in cured)}


def compare(toml: Sequence[str], before: Report, after: Report) -> Prescription:
    """The prescription with the result of the check through a gateway that has these settings."""
    judged = {rule.id for rule in after.rules if rule.verdict in _JUDGED}
    left = {KNOWLEDGE.left.get(rule) or f"{rule} ({after.rule_summary(rule)})": None for rule in after.root_causes}
    failed = [f"{pluralize(after.failed_answers, 'answer')} that ended in an error"] if after.failed_answers else []
    return Prescription(
        toml=tuple(toml),
        after=tuple(after.findings_by_rule),
        left=(*failed, *left),
        unjudged=tuple(rule.id for rule in before.rules if rule.verdict in _JUDGED and rule.id not in judged),
    )


def render_lines(report: Report) -> list[str]:
    """The prescription of a report, for a terminal."""
    prescription = report.prescription
    if prescription is None:
        return []
    lines = ["", "# welldone.toml of a gateway that makes this server right for its clients", *prescription.toml, ""]
    if prescription.problem:
        return [*lines, f"The settings could not be tried: {prescription.problem}"]
    left = f"; left: {', '.join(prescription.left)}: only the server can fix these" if prescription.left else ""
    lines += [f"{pluralize(len(report.findings_by_rule), 'broken rule')} → {len(prescription.after)}{left}"]
    if unjudged := prescription.unjudged:
        rules = ", ".join(unjudged[:_SHOWN_RULES]) + (", …" if len(unjudged) > _SHOWN_RULES else "")
        lines.append(f"Through the gateway these rules could not be judged ({len(unjudged)}): {rules}")
    return lines
