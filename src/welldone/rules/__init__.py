"""The judge: checks a recorded response against the rule catalogue. Shares only SSE parsing with the repairer."""
