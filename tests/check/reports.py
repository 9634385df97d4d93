"""Reports for tests: of a server that passes, of one that fails, and one with hostile text in every field."""

import msgspec

from welldone.check.report import Cause, Finding, ProbeResult, Report, RuleResult, RunCost, Verdict

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "]]></failure>&nope;",
    "\x00\x07\x1b[31m\x7f\x85\ufffe",
    "\ud800 lone \udfff",
    "\u202eevil\u2066\u200b",
    "line\r\n\n\n# heading\u2028\n---",
    "| a | b |\n|---|---|",
    "``` ` `` [x](http://evil.example) ![x](http://evil.example) <http://evil.example> @someone #1",
    "'\" onload=alert(1) style=position:fixed",
    "m" * 2**20,
    "",
)
"""Texts that would break out of an unescaped field."""


def finding(**changes: object) -> Finding:
    """Finding of a repeated role."""
    plain = Finding(
        rule="delta-role-once",
        severity="breaks",
        kind="breaks",
        probe="tools",
        request=1,
        frame=7,
        byte=1804,
        observed='{"role":"assistant","content":"b"}',
        expected='{"content":"b"}',
        count=1,
        affects=("langchain: joins the roles", "zed: shows a second message"),
        reproduce="welldone check http://127.0.0.1:8000/v1 --only tools --rule delta-role-once",
        curl="curl -sN http://127.0.0.1:8000/v1/chat/completions -d '{}'",
    )
    return msgspec.structs.replace(plain, **changes)


def passing_report(**changes: object) -> Report:
    """Report on a server that breaks no rule and lacks `stop`."""
    plain = Report(
        tool="0.5.0",
        date="2026-01-02T03:04:05Z",
        url="http://127.0.0.1:8000/v1",
        model="qwen3-0.6b",
        server="llama.cpp",
        profile=None,
        is_strict=False,
        verdict=Verdict.PASS,
        passed=True,
        cost=RunCost(requests=63, prompt_tokens=2_100, completion_tokens=1_000, is_counted=False, seconds=31.2),
        probes=(
            _probe("plain", Verdict.PASS),
            _probe("tools", Verdict.PASS),
            _probe("stop", Verdict.UNSUPPORTED, reason="400: stop is not supported", rules=0),
        ),
        rules=(
            _rule("delta-role-once", Verdict.PASS, "breaks"),
            _rule("use-final-chunk", Verdict.PASS, "tolerated"),
            _rule("env-fingerprint", Verdict.PASS, "style"),
            _rule("n-index-int", Verdict.UNSUPPORTED, "breaks", reason="n is 1 only"),
            _rule("ext-audio", Verdict.NOT_APPLICABLE, "style", reason="no reply had audio"),
        ),
        findings=(),
    )
    return msgspec.structs.replace(plain, **changes)


def failing_report(**changes: object) -> Report:
    """Report on a server that breaks one rule in two probes, and two others that break no client."""
    plain = passing_report(
        verdict=Verdict.FAIL,
        passed=False,
        probes=(
            _probe("plain", Verdict.PASS),
            _probe("tools", Verdict.FAIL, broken=("delta-role-once", "use-final-chunk")),
            _probe("n", Verdict.FAIL, broken=("delta-role-once",)),
            _probe("headers", Verdict.WARN, broken=("env-fingerprint",)),
            _probe("stop", Verdict.UNSUPPORTED, reason="400: stop is not supported", rules=0),
        ),
        rules=(
            _rule("delta-role-once", Verdict.FAIL, "breaks", probes=("tools", "n")),
            _rule("use-final-chunk", Verdict.WARN, "tolerated", probes=("tools",)),
            _rule("env-fingerprint", Verdict.WARN, "style", probes=("headers",)),
            *passing_report().rules[3:],
        ),
        findings=(
            finding(count=2),
            finding(probe="n", request=2),
            finding(
                rule="use-final-chunk",
                severity="tolerated",
                kind="advice",
                frame=None,
                byte=None,
                curl=None,
                affects=(),
            ),
            finding(
                rule="env-fingerprint", severity="style", kind="advice", probe="headers", trace="traces/headers-1.json"
            ),
        ),
    )
    return msgspec.structs.replace(plain, **changes)


def hostile_report(text: str) -> Report:
    """Report with `text` in every text field."""
    plain = failing_report()
    fields = {"url": text, "model": text, "server": text, "profile": text, "tool": text, "date": text}
    findings = [
        msgspec.structs.replace(
            one,
            rule=text,
            probe=text,
            observed=text,
            expected=text,
            affects=(text,),
            reproduce=text,
            curl=text,
            trace=text,
        )
        for one in plain.findings
    ]
    probes = [
        msgspec.structs.replace(one, name=text, description=text, reason=text, broken=(text,) if one.broken else ())
        for one in plain.probes
    ]
    rules = [msgspec.structs.replace(one, id=text, summary=text, reason=text, probes=(text,)) for one in plain.rules]
    more = {"failures": (text,) * 3, "answers": 3, "failed_answers": 3, "hang": text, "stale": (text,)}
    causes = (Cause(text, text, (text,), "breaks", text),)
    return msgspec.structs.replace(
        plain, **fields, **more, causes=causes, findings=tuple(findings), probes=tuple(probes), rules=tuple(rules)
    )


def _probe(name: str, verdict: Verdict, reason: str = "", rules: int = 17, broken: tuple[str, ...] = ()) -> ProbeResult:
    return ProbeResult(
        name=name,
        description=f"description of {name}",
        verdict=verdict,
        reason=reason,
        requests=2,
        rules=rules,
        broken=broken,
        seconds=1.5,
    )


def _rule(
    rule: str, verdict: Verdict, severity: str, reason: str = "", probes: tuple[str, ...] = ("plain", "tools")
) -> RuleResult:
    return RuleResult(
        id=rule, summary=f"summary of {rule}", severity=severity, verdict=verdict, reason=reason, probes=probes
    )
