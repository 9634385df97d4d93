"""The rule catalogue, one module per family: `catalog.delta.ROLE_ONCE` is the rule `delta-role-once`."""

from welldone.protocol.catalog import (
    cmpl,
    delta,
    enc,
    end,
    env,
    err,
    ext,
    fin,
    http,
    live,
    msg,
    n,
    ns,
    req,
    resp,
    sse,
    tool,
    use,
)
from welldone.protocol.catalog.rule import Rule as Rule

# Ordered from transport to semantics.
ALL_RULES: tuple[Rule, ...] = tuple(
    value
    for family in (http, sse, enc, end, env, delta, fin, use, tool, ext, err, n, cmpl, resp, msg, ns, live, req)
    for value in vars(family).values()
    if isinstance(value, Rule)
)

RULES_BY_ID: dict[str, Rule] = {rule.id: rule for rule in ALL_RULES}
