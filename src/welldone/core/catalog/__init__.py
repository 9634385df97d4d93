"""The rule catalogue: the rows of `FAMILY.json` in this folder. Code names a rule by its id, which is stable."""

from enum import StrEnum
from pkgutil import get_data

import msgspec

ALL_ENDPOINTS = ("chat", "completions", "responses", "messages", "gemini")
"""Endpoints of a rule that does not depend on the dialect."""

FAMILIES = {
    "http": "HTTP transport",
    "sse": "SSE framing",
    "enc": "Encoding and JSON",
    "end": "The end of a stream",
    "env": "The chunk envelope",
    "delta": "Role and content deltas",
    "fin": "finish_reason",
    "use": "Usage",
    "tool": "Tool calls",
    "ext": "Reasoning, refusal, logprobs and extras",
    "err": "Errors",
    "n": "Several choices",
    "cmpl": "/v1/completions",
    "resp": "/v1/responses",
    "msg": "/v1/messages",
    "gem": "Gemini: generateContent and streamGenerateContent",
    "ns": "Replies that are not streamed",
    "live": "Keep-alives, stop strings, disconnects",
    "req": "Request fields",
}
"""Titles of the families, ordered from transport to semantics. A rule id begins with its family."""


class Kind(StrEnum):
    """What a rule rests on. `check` and `lint` fail if a rule is broken, unless it is advice."""

    SPECIFIED = "specified"
    """A published specification or schema demands it."""
    OBSERVED = "observed"
    """OpenAI's own replies are so."""
    BREAKS = "breaks"
    """No specification demands it, but a violation breaks a real client."""
    ADVICE = "advice"
    """Our advice."""


class Severity(StrEnum):
    """Effect of a violation on real clients."""

    BREAKS = "breaks"
    """At least one real client fails, loses data or hangs."""
    TOLERATED = "tolerated"
    """Usually survived; some clients degrade."""
    STYLE = "style"
    """Not what OpenAI sends; nothing is known to break."""


class Repairability(StrEnum):
    """How far a proxy can repair a violation."""

    LOSSLESS = "lossless"
    """Repaired without loss."""
    PARTIAL = "partial"
    """Repaired in the cases that `Rule.repair` names, else reported."""
    REPORT_ONLY = "report"
    """Only reported."""


class Detection(StrEnum):
    """What is needed to detect a violation."""

    REPLY = "reply"
    """One recorded reply, and for some rules its request."""
    PROBE = "probe"
    """Dedicated requests: several replies compared, their timing, or the state of the server."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client does with one form of a violation: measured, or read in its source."""

    client: str
    effect: str
    measured: str = ""
    """The version of the client with which it was measured."""
    read: str = ""
    """Where in the client's source it was read."""

    def __str__(self) -> str:
        basis = f"measured with {self.measured}" if self.measured else f"read in {self.read}"
        return f"{self.client}: {self.effect} ({basis})"


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One form of a violation: what is wrong."""

    severity: Severity
    kind: Kind | None = None
    """Where it differs from that of the rule."""
    evidence: tuple[Evidence, ...] = ()

    @property
    def affects(self) -> tuple[str, ...]:
        """The affected clients, each as `client: effect`."""
        return tuple(map(str, self.evidence))


_SEVERITIES = tuple(Severity)
ANY = "any"
"""Form of a violation that is none of the others."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of the protocol."""

    id: str
    kind: Kind
    source: str
    """What demands it: a document with its version, the clients, or welldone."""
    section: str
    date: str
    """The day on which the source was read."""
    endpoints: tuple[str, ...]
    summary: str
    """The requirement, as one sentence."""
    forms: dict[str, Form]
    """By name: `missing`, `null`, `wrong type`, `wrong value`, some with `: detail`, others, and `any`."""
    repairability: Repairability
    repair: str
    """What the repairer does, or why it cannot repair it."""
    detection: Detection = Detection.REPLY

    @property
    def severity(self) -> Severity:
        """The severity of the worst form."""
        return min((form.severity for form in self.forms.values()), key=_SEVERITIES.index)

    @property
    def affects(self) -> tuple[str, ...]:
        """The clients that any form affects, each as `client: effect`."""
        return tuple(dict.fromkeys(effect for form in self.forms.values() for effect in form.affects))

    def find_form(self, observed: str) -> tuple[str | None, Form]:
        """Return the form of a violation, and its name if the rule has several."""
        names = (observed, observed.partition(":")[0], "wrong value" if observed.startswith("wrong type") else ANY, ANY)
        name = next(name for name in names if name in self.forms)
        return (name if len(self.forms) > 1 else None), self.forms[name]

    @property
    def family(self) -> str:
        """First word of the id."""
        return self.id.partition("-")[0]


def _load_rules() -> dict[str, Rule]:
    decoder = msgspec.json.Decoder(list[Rule])
    # Not importlib.resources, which takes 20 ms to import.
    rows = (get_data("welldone.core", f"catalog/{family}.json") or b"" for family in FAMILIES)
    return {rule.id: rule for row in rows for rule in decoder.decode(row)}


RULES = _load_rules()
"""All rules by id, in the order of the families and of their files."""
BREAKING_RULES: frozenset[str] = frozenset(id for id, rule in RULES.items() if rule.severity is Severity.BREAKS)
"""Ids of the rules whose violation breaks clients, in some form."""
