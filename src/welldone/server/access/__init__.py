"""Access control: API keys, rate limits, origins, and where counters are stored."""
