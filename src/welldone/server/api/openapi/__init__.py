"""OpenAPI 3.1 description of the server (`GET /openapi.json`), built from the limits that the validators use."""
