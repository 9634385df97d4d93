"""Autoscaling policy of engine replicas, by the number of streams. Ray's controller imports this module by name."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

STREAMS_METRIC = "streams"
"""Metric that each engine replica reports: answers in progress and queued."""


def autoscale_by_streams(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Return the number of replicas for the target streams per replica. Ray applies bounds and delays."""
    metrics = (context.aggregated_metrics or {}).get(STREAMS_METRIC, {})
    streams = sum(metrics.values())
    target = context.config.target_ongoing_requests
    return max(1, math.ceil(streams / target)), {}
