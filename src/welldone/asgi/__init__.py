"""ASGI middleware that repairs the streams and replies of an application: FastAPI, Starlette, Litestar, Quart, vLLM."""

from welldone.asgi.middleware import RepairMiddleware
from welldone.asgi.response_repair import AnswerReport

__all__ = ["AnswerReport", "RepairMiddleware"]
