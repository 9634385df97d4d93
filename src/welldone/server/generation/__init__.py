"""From a validated request to a response: attempts, retries, and the streams of upstreams."""
