"""Middleware of Ray's proxies. Ray imports `middlewares` by the path in RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH."""

from starlette.middleware import Middleware

from welldone.cluster.failover_middleware import FailoverMiddleware

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK = f"{__name__}.middlewares"


def middlewares() -> list[Middleware]:
    """Return the middleware for every request."""
    return [Middleware(FailoverMiddleware)]
