"""The web page of the server: captured streams with their repairs, lint, and the state of the server."""
