"""Load test of a server: latency, throughput, errors."""
