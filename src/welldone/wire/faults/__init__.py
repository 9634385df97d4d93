"""Every way to be wrong, one module per family; `faults.delta.ROLE_ONCE` is the fault `delta-role-once`."""

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
    n,
    ns,
    req,
    sse,
    tool,
    use,
)
from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

__all__ = [
    "Fault",
    "Hearing",
    "Mend",
    "Severity",
    "cmpl",
    "delta",
    "enc",
    "end",
    "env",
    "err",
    "ext",
    "fin",
    "http",
    "live",
    "n",
    "ns",
    "req",
    "sse",
    "tool",
    "use",
]
