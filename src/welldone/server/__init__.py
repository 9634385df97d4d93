"""The HTTP server: access control, routing, endpoints, generation."""
