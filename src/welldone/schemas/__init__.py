"""Request schemas: one Struct per endpoint, for validation, error messages, OpenAPI, the docs and the mock server."""
