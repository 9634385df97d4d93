"""Dialects of an answer, one writer each: chat, completions, Responses, Anthropic Messages, Ollama."""
