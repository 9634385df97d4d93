"""The server: routes, keys, limits, queues, metrics, and the way of one answer."""
