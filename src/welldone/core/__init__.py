"""Sans-I/O core of all dialects: SSE framing, JSON, events and their order, repair, the log of repairs, the rules.

Deterministic: the same input gives the same bytes. Time and ids are parameters.
"""
