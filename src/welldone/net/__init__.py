"""Bytes over sockets, and settings: what knows nothing of models and answers."""
