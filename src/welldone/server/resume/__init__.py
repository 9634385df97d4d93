"""Resume: a client that lost its connection gets the rest of its stream."""
