"""Loading and unloading of models by hand, under the names that llama-server's router has for it."""

from collections.abc import Awaitable, Callable

from welldone.engines.fleet import EngineError, Model
from welldone.net.inbound import Reply
from welldone.serve.app import Ask, json_reply
from welldone.serve.backends import Local, Remote
from welldone.serve.errors import ApiError, invalid
from welldone.serve.keys import Keys
from welldone.serve.refusals import from_engine
from welldone.serve.requests import fields
from welldone.wire.events import Json


class Loading:
    """Both paths. `body` reads a request, and `find` gives who answers for a name. Only admins get in."""

    def __init__(
        self,
        keys: Keys,
        *,
        body: Callable[[Ask], Awaitable[Json]],
        find: Callable[[Ask, object], Local | Remote],
    ) -> None:
        self._keys = keys
        self._body = body
        self._find = find

    async def load(self, ask: Ask) -> Reply:
        """Begin to load a model; who wants to know when it is ready looks at its state."""
        model, _ = await self._asked(ask)
        try:
            model.load()
        except EngineError as error:
            raise from_engine(error) from error
        return json_reply({"success": True})

    async def unload(self, ask: Ask) -> Reply:
        """Begin to unload a model that nobody uses; with `force` also one that is in use."""
        model, is_forced = await self._asked(ask)
        if model.running and not is_forced:
            message = f"The model `{model.name}` is in use. With force = true what runs is ended."
            raise ApiError(409, message, param="model", code="model_busy")
        model.begin_to_unload()
        return json_reply({"success": True})

    async def _asked(self, ask: Ask) -> tuple[Model, bool]:
        """The model, and whether `force` was said."""
        self._keys.check_admin(ask.principal)
        body = await self._body(ask)
        is_forced = fields.boolean(body, "force") is True
        found = self._find(ask, body.get("model"))
        if isinstance(found, Local):
            return found.model, is_forced
        message = f"The model `{found.name[:64]}` is an upstream's, which loads it itself."
        raise invalid(message, param="model", code="model_not_local")
