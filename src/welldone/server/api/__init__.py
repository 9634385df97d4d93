"""The endpoints of the OpenAI, Anthropic and Ollama APIs."""
