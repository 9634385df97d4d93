"""All that is in the plan, in the order in which it runs and is shown."""

from faults import (
    abusing,
    canaries,
    connections,
    crashing,
    descriptors,
    disk,
    doors,
    dying,
    ending,
    failing,
    flapping,
    hanging,
    hostile_files,
    hygiene,
    leaving,
    memory,
    network,
    odd_replies,
    official,
    reaching,
    schemas,
    slow_clients,
    soak,
    starving,
    statuses,
    turns,
)
from faults.case import Group
from faults.nemesis import gateway, local

PLAN: tuple[Group, ...] = (
    Group("Clients leave, read slowly, or mean ill", (*leaving.CASES, *memory.CASES, *slow_clients.CASES)),
    Group(
        "The upstream fails",
        (
            *failing.CASES,
            *dying.CASES,
            *hanging.CASES,
            *statuses.CASES,
            *official.CASES,
            *flapping.CASES,
            *connections.CASES,
            *odd_replies.CASES,
        ),
    ),
    Group("Processes end, and files lie", (*ending.CASES, *crashing.CASES, *hostile_files.CASES)),
    Group("The machine is short of something", (*starving.CASES, *descriptors.CASES, *disk.CASES, *network.CASES)),
    Group(
        "Requests and streams that do harm elsewhere", (*abusing.CASES, *turns.CASES, *schemas.CASES, *hygiene.CASES)
    ),
    Group("Doors and secrets", (*doors.CASES, *canaries.CASES, *reaching.CASES)),
    Group("All of it at once, and for long", (*gateway.CASES, *local.CASES, *soak.CASES)),
)

CASES = {case.name: case for group in PLAN for case in group.cases}
