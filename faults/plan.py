"""All that is in the plan, in the order in which it runs and is shown."""

from faults.case import Group

PLAN: tuple[Group, ...] = ()

CASES = {case.name: case for group in PLAN for case in group.cases}
