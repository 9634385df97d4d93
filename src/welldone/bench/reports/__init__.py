"""Report formats of the load test."""
