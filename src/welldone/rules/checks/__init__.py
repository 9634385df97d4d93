"""The checks, one file per family of faults. `RULES` has them all, in the order of the catalogue."""

from welldone.rules.checks import cmpl, delta, enc, end, env, err, ext, fin, http, msg, n, ns, resp, sse, tool, use
from welldone.rules.rule import RuleCheck

ALL_CHECKS: tuple[RuleCheck, ...] = (
    *http.HTTP_CHECKS,
    *sse.SSE_CHECKS,
    *enc.ENCODING_CHECKS,
    *end.END_CHECKS,
    *env.ENVELOPE_CHECKS,
    *delta.DELTA_CHECKS,
    *fin.FINISH_CHECKS,
    *use.USAGE_CHECKS,
    *tool.TOOL_CHECKS,
    *ext.EXTENSION_CHECKS,
    *err.ERROR_CHECKS,
    *n.CHOICE_CHECKS,
    *cmpl.COMPLETIONS_CHECKS,
    *resp.RESPONSES_CHECKS,
    *msg.ANTHROPIC_CHECKS,
    *ns.WHOLE_REPLY_CHECKS,
)
