"""The sans-I/O core: SSE framing, events, repair, and the writers of each dialect. Same input, same bytes."""
