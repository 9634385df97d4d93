"""Dialect of /v1/chat/completions, and of legacy /v1/completions."""
