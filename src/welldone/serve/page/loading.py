"""Loading and unloading of models by hand, under the names that llama-server's router has for it."""

from collections.abc import Awaitable, Callable

from welldone.engines.fleet import EngineError, LocalModel
from welldone.net.inbound import HttpResponse
from welldone.serve.app import RequestContext, json_response
from welldone.serve.backends import LocalBackend, UpstreamBackend
from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.keys import ApiKeys
from welldone.serve.refusals import engine_unavailable
from welldone.serve.requests import fields
from welldone.wire.events import Json


class ModelLoadingApi:
    """Both paths. `body` reads a request, and `find` gives who answers for a name. Only admins get in."""

    def __init__(
        self,
        keys: ApiKeys,
        *,
        read_body: Callable[[RequestContext], Awaitable[Json]],
        find_backend: Callable[[RequestContext, object], LocalBackend | UpstreamBackend],
    ) -> None:
        self._keys = keys
        self._read_body = read_body
        self._find_backend = find_backend

    async def load(self, ctx: RequestContext) -> HttpResponse:
        """Begin to load a model; who wants to know when it is ready looks at its state."""
        model, _ = await self._read_request(ctx)
        try:
            model.load()
        except EngineError as error:
            raise engine_unavailable(error) from error
        return json_response({"success": True})

    async def unload(self, ctx: RequestContext) -> HttpResponse:
        """Begin to unload a model that nobody uses; with `force` also one that is in use."""
        model, is_forced = await self._read_request(ctx)
        if model.running and not is_forced:
            message = f"The model `{model.name}` is in use. With force = true what runs is ended."
            raise ApiError(409, message, param="model", code="model_busy")
        model.start_unload()
        return json_response({"success": True})

    async def _read_request(self, ctx: RequestContext) -> tuple[LocalModel, bool]:
        """The model, and whether `force` was said."""
        self._keys.check_admin(ctx.principal)
        body = await self._read_body(ctx)
        is_forced = fields.boolean(body, "force") is True
        found = self._find_backend(ctx, body.get("model"))
        if isinstance(found, LocalBackend):
            return found.model, is_forced
        message = f"The model `{found.name[:64]}` is an upstream's, which loads it itself."
        raise invalid_request(message, param="model", code="model_not_local")
