"""The fault plan: all cases, in the order in which they run and are listed."""

from faults import (
    abusing,
    canaries,
    connections,
    contention,
    continuing,
    continuing_local,
    crashing,
    descriptors,
    disconnecting,
    disk,
    dying,
    ending,
    failing,
    fairness,
    flapping,
    hanging,
    hostile_files,
    hygiene,
    local_load,
    memory,
    network,
    odd_replies,
    openai_client,
    schemas,
    slow_clients,
    soak,
    ssrf,
    starving,
    statuses,
    tenants,
    web_access,
)
from faults.case import Group
from faults.nemesis import gateway, local

PLAN: tuple[Group, ...] = (
    Group(
        "Clients that disconnect, read slowly, or attack", (*disconnecting.CASES, *memory.CASES, *slow_clients.CASES)
    ),
    Group(
        "Failing upstreams",
        (
            *failing.CASES,
            *dying.CASES,
            *continuing.CASES,
            *hanging.CASES,
            *statuses.CASES,
            *openai_client.CASES,
            *flapping.CASES,
            *connections.CASES,
            *odd_replies.CASES,
        ),
    ),
    Group(
        "Ending processes, hostile files",
        (
            *ending.CASES,
            *crashing.CASES,
            *local_load.CASES,
            *contention.CASES,
            *continuing_local.CASES,
            *hostile_files.CASES,
        ),
    ),
    Group("Exhausted resources", (*starving.CASES, *descriptors.CASES, *disk.CASES, *network.CASES)),
    Group("Hostile requests and streams", (*abusing.CASES, *fairness.CASES, *schemas.CASES, *hygiene.CASES)),
    Group("Access control and secrets", (*web_access.CASES, *canaries.CASES, *ssrf.CASES, *tenants.CASES)),
    Group("Random faults and long runs", (*gateway.CASES, *local.CASES, *soak.CASES)),
)

CASES = {case.name: case for group in PLAN for case in group.cases}
