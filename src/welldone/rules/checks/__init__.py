"""Checks, one module per group of rule families. `ALL_CHECKS` is in catalogue order."""

from welldone.core.catalog import RULES
from welldone.rules.checks import anthropic, content, envelope, errors, framing, gemini, responses, tools
from welldone.rules.rule_check import RuleCheck

_MODULES = (anthropic, content, envelope, errors, framing, gemini, responses, tools)
_CATALOGUE_ORDER = {rule: position for position, rule in enumerate(RULES)}

ALL_CHECKS: tuple[RuleCheck, ...] = tuple(
    sorted((check for module in _MODULES for check in module.CHECKS), key=lambda check: _CATALOGUE_ORDER[check.rule])
)
