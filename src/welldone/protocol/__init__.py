"""Sans-I/O protocol core: SSE framing, events, repair and the writers of each dialect.

Deterministic: the same input gives the same bytes. Time and ids are parameters.
"""
