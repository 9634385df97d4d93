"""All faults in one list, in the order in which a reader meets them: from the socket to the meaning."""

from welldone.wire.faults import (
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
from welldone.wire.faults.fault import Rule

ALL_RULES: tuple[Rule, ...] = tuple(
    value
    for family in (http, sse, enc, end, env, delta, fin, use, tool, ext, err, n, cmpl, resp, msg, ns, live, req)
    for value in vars(family).values()
    if isinstance(value, Rule)
)

RULES_BY_ID: dict[str, Rule] = {fault.id: fault for fault in ALL_RULES}
