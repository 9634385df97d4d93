"""Upstreams: selection, health, circuit breaker, request queue, and error mapping."""
