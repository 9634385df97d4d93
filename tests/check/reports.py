"""Reports for tests: one of a right server, one of a wrong server, and one of a server that wants to be shown."""

import msgspec

from welldone.check.report import Cost, Finding, Probed, Report, Ruled, Verdict

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
        heard='{"role":"assistant","content":"b"}',
        wanted='{"content":"b"}',
        count=1,
        hurts=("langchain: joins the roles", "zed: shows a second message"),
        again="welldone check http://127.0.0.1:8000/v1 --only tools --rule delta-role-once",
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
        verdict=Verdict.RIGHT,
        passed=True,
        cost=Cost(requests=63, prompt_tokens=2_100, completion_tokens=1_000, is_counted=False, seconds=31.2),
        probes=(
            _probe("plain", Verdict.RIGHT),
            _probe("tools", Verdict.RIGHT),
            _probe("stop", Verdict.NOT_OFFERED, why="400: stop is not supported", rules=0),
        ),
        rules=(
            _rule("delta-role-once", Verdict.RIGHT, "breaks"),
            _rule("use-final-chunk", Verdict.RIGHT, "tolerated"),
            _rule("env-fingerprint", Verdict.RIGHT, "style"),
            _rule("n-index-int", Verdict.NOT_OFFERED, "breaks", why="n is 1 only"),
            _rule("ext-audio", Verdict.NOT_HEARD, "style", why="no audio was heard"),
        ),
        findings=(),
    )
    return msgspec.structs.replace(plain, **changes)


def wrong(**changes: object) -> Report:
    """A server that breaks one rule in two probes, and two others that break no client."""
    plain = right(
        verdict=Verdict.WRONG,
        passed=False,
        probes=(
            _probe("plain", Verdict.RIGHT),
            _probe("tools", Verdict.WRONG, broken=("delta-role-once", "use-final-chunk")),
            _probe("n", Verdict.WRONG, broken=("delta-role-once",)),
            _probe("headers", Verdict.LAX, broken=("env-fingerprint",)),
            _probe("stop", Verdict.NOT_OFFERED, why="400: stop is not supported", rules=0),
        ),
        rules=(
            _rule("delta-role-once", Verdict.WRONG, "breaks", probes=("tools", "n")),
            _rule("use-final-chunk", Verdict.LAX, "tolerated", probes=("tools",)),
            _rule("env-fingerprint", Verdict.LAX, "style", probes=("headers",)),
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
            one, rule=text, probe=text, heard=text, wanted=text, hurts=(text,), again=text, curl=text, trace=text
        )
        for one in plain.findings
    ]
    probes = [
        msgspec.structs.replace(one, name=text, says=text, why=text, broken=(text,) if one.broken else ())
        for one in plain.probes
    ]
    rules = [msgspec.structs.replace(one, id=text, rule=text, why=text, probes=(text,)) for one in plain.rules]
    return msgspec.structs.replace(plain, **said, findings=tuple(broken), probes=tuple(probes), rules=tuple(rules))


def _probe(name: str, verdict: Verdict, why: str = "", rules: int = 17, broken: tuple[str, ...] = ()) -> Probed:
    return Probed(
        name=name,
        says=f"what {name} asks",
        verdict=verdict,
        why=why,
        requests=2,
        rules=rules,
        broken=broken,
        seconds=1.5,
    )


def _rule(
    rule: str, verdict: Verdict, severity: str, why: str = "", probes: tuple[str, ...] = ("plain", "tools")
) -> Ruled:
    return Ruled(id=rule, rule=f"what {rule} wants", severity=severity, verdict=verdict, why=why, probes=probes)
