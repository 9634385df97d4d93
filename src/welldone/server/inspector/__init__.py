"""The page of the server: captured streams, their repairs, and the state of the server."""
