"""What Ray's proxies are given. Ray looks for it where `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` says."""

from starlette.middleware import Middleware

from welldone.cluster.failover_middleware import FailoverMiddleware

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK = f"{__name__}.middlewares"


def middlewares() -> list[Middleware]:
    """Around each request of each proxy."""
    return [Middleware(FailoverMiddleware)]
