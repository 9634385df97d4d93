"""How many replicas there should be: as many as the streams need."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

STREAMS_METRIC = "streams"
"""What an engine counts: answers that are given or wait."""


def autoscale_by_streams(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Each replica has about as many streams as it should. Ray adds the bounds and the delays."""
    counted = (context.aggregated_metrics or {}).get(STREAMS_METRIC, {})
    streams = sum(counted.values())
    target = context.config.target_ongoing_requests
    return max(1, math.ceil(streams / target)), {}
