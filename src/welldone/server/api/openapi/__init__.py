"""The server described as OpenAPI 3.1: `GET /openapi.json`. Limits and words are those that the readers obey."""
