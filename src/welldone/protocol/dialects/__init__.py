"""One writer for each dialect of the answer: chat, completions, Responses, Messages, Ollama."""
