"""The checks, one file per family of faults. `RULES` has them all, in the order of the catalogue."""

from welldone.rules.checks import cmpl, delta, enc, end, env, err, ext, fin, http, msg, n, ns, resp, sse, tool, use
from welldone.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *http.RULES,
    *sse.RULES,
    *enc.RULES,
    *end.RULES,
    *env.RULES,
    *delta.RULES,
    *fin.RULES,
    *use.RULES,
    *tool.RULES,
    *ext.RULES,
    *err.RULES,
    *n.RULES,
    *cmpl.RULES,
    *resp.RULES,
    *msg.RULES,
    *ns.RULES,
)
