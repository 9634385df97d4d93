"""The load test: how fast a server answers many at once, and how often it does not."""
