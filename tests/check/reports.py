"""Reports for tests: one of a right server, one of a wrong server, and one of a server that wants to be shown."""

import msgspec

from welldone.check.report import Finding, ProbeResult, Report, RuleResult, RunCost, Verdict

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
"""Texts that try to get out of the place where they are shown."""


def finding(**changes: object) -> Finding:
    """A role that came twice."""
    plain = Finding(
        rule="delta-role-once",
        severity="breaks",
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


def right(**changes: object) -> Report:
    """A server that breaks nothing, and does not do all."""
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
            _probe("stop", Verdict.UNSUPPORTED, why="400: stop is not supported", rules=0),
        ),
        rules=(
            _rule("delta-role-once", Verdict.PASS, "breaks"),
            _rule("use-final-chunk", Verdict.PASS, "tolerated"),
            _rule("env-fingerprint", Verdict.PASS, "style"),
            _rule("n-index-int", Verdict.UNSUPPORTED, "breaks", why="n is 1 only"),
            _rule("ext-audio", Verdict.NOT_APPLICABLE, "style", why="no audio was heard"),
        ),
        findings=(),
    )
    return msgspec.structs.replace(plain, **changes)


def wrong(**changes: object) -> Report:
    """A server that breaks one rule in two probes, and two others that break no client."""
    plain = right(
        verdict=Verdict.FAIL,
        passed=False,
        probes=(
            _probe("plain", Verdict.PASS),
            _probe("tools", Verdict.FAIL, broken=("delta-role-once", "use-final-chunk")),
            _probe("n", Verdict.FAIL, broken=("delta-role-once",)),
            _probe("headers", Verdict.WARN, broken=("env-fingerprint",)),
            _probe("stop", Verdict.UNSUPPORTED, why="400: stop is not supported", rules=0),
        ),
        rules=(
            _rule("delta-role-once", Verdict.FAIL, "breaks", probes=("tools", "n")),
            _rule("use-final-chunk", Verdict.WARN, "tolerated", probes=("tools",)),
            _rule("env-fingerprint", Verdict.WARN, "style", probes=("headers",)),
            *right().rules[3:],
        ),
        findings=(
            finding(count=2),
            finding(probe="n", request=2),
            finding(rule="use-final-chunk", severity="tolerated", frame=None, byte=None, curl=None, hurts=()),
            finding(rule="env-fingerprint", severity="style", probe="headers", trace="traces/headers-1.json"),
        ),
    )
    return msgspec.structs.replace(plain, **changes)


def hostile(text: str) -> Report:
    """A report in which the text stands wherever one can stand."""
    plain = wrong()
    said = {"url": text, "model": text, "server": text, "profile": text, "tool": text, "date": text}
    broken = [
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
    return msgspec.structs.replace(plain, **said, findings=tuple(broken), probes=tuple(probes), rules=tuple(rules))


def _probe(name: str, verdict: Verdict, why: str = "", rules: int = 17, broken: tuple[str, ...] = ()) -> ProbeResult:
    return ProbeResult(
        name=name,
        description=f"what {name} asks",
        verdict=verdict,
        reason=why,
        requests=2,
        rules=rules,
        broken=broken,
        seconds=1.5,
    )


def _rule(
    rule: str, verdict: Verdict, severity: str, why: str = "", probes: tuple[str, ...] = ("plain", "tools")
) -> RuleResult:
    return RuleResult(
        id=rule, summary=f"what {rule} wants", severity=severity, verdict=verdict, reason=why, probes=probes
    )
