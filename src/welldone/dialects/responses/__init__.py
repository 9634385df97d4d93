"""Dialect of OpenAI's Responses API (/v1/responses)."""
