"""One writer per dialect: the same events, said as each endpoint says them."""
