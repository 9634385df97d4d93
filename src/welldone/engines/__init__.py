"""Local models: child processes that run llama.cpp or a command, and their supervisor."""
