"""Checks, one module per group of rule families. `ALL_CHECKS` is in catalogue order."""

from welldone.rules.checks import anthropic, content, envelope, errors, framing, responses, tools, usage
from welldone.rules.rule_check import RuleCheck

ALL_CHECKS: tuple[RuleCheck, ...] = (
    *framing.HTTP_CHECKS,
    *framing.SSE_CHECKS,
    *framing.ENCODING_CHECKS,
    *framing.END_CHECKS,
    *envelope.ENVELOPE_CHECKS,
    *content.DELTA_CHECKS,
    *content.FINISH_CHECKS,
    *usage.USAGE_CHECKS,
    *tools.TOOL_CHECKS,
    *content.EXTENSION_CHECKS,
    *errors.ERROR_CHECKS,
    *envelope.CHOICE_CHECKS,
    *envelope.COMPLETIONS_CHECKS,
    *responses.RESPONSES_CHECKS,
    *anthropic.ANTHROPIC_CHECKS,
    *envelope.WHOLE_REPLY_CHECKS,
)
