"""The handlers of `/keys`: admins list, add and remove stored API keys, as with `welldone keys`."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from welldone.config.settings import SettingsError
from welldone.core.events import Json
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.messages import HttpResponse
from welldone.schemas.utilities import AddKeyRequest
from welldone.server.access.key_storage import (
    KeyExistsError,
    KeyFileError,
    KeyStorage,
    add_new_key,
    listed_keys,
    remove_key,
)
from welldone.server.access.keys import ANONYMOUS, SharedKey
from welldone.server.config_file import check_model_name
from welldone.server.context import RequestContext, json_response
from welldone.server.parts import ServerParts
from welldone.server.requests import fields

_NO_STORE = "This server has no store of API keys. Start it with --keys-file FILE, or with --limits-store URL."


class KeysApi(msgspec.Struct):
    """The handlers, for admins only. `read_body` reads a JSON object."""

    parts: ServerParts
    read_body: Callable[[RequestContext], Awaitable[Json]]

    async def list(self, ctx: RequestContext) -> HttpResponse:
        """GET /keys: names and permissions, never the keys or their digests."""
        storage = self._storage(ctx)
        with _mapped_errors():
            return json_response({"object": "list", "data": [_key_object(key) for key in await listed_keys(storage)]})

    async def add(self, ctx: RequestContext) -> HttpResponse:
        """POST /keys: add a key. The reply has the key, which is not stored and not shown again."""
        self.parts.keys.check_admin(ctx.principal)
        body = await self.read_body(ctx)
        storage = self._storage(ctx)
        key = self._checked_key(fields.read_fields(body, AddKeyRequest))
        with _mapped_errors():
            made = await add_new_key(storage, key)
        reply = json_response({**_key_object(key), "key": made})
        reply.headers["Cache-Control"] = "no-store"
        return reply

    async def remove(self, ctx: RequestContext) -> HttpResponse:
        """DELETE /keys/NAME."""
        storage = self._storage(ctx)
        name = ctx.request.path.rpartition("/")[2]
        with _mapped_errors():
            is_removed = await remove_key(storage, name)
        if not is_removed:
            raise ApiError(404, f"There is no stored key `{name[:64]}`.", code="not_found")
        return json_response({"name": name, "object": "key", "deleted": True})

    def _storage(self, ctx: RequestContext) -> KeyStorage:
        self.parts.keys.check_admin(ctx.principal)
        if self.parts.key_storage is None:
            raise ApiError(409, _NO_STORE, code="no_key_store")
        return self.parts.key_storage

    def _checked_key(self, request: AddKeyRequest) -> SharedKey:
        if request.name == ANONYMOUS or self.parts.keys.is_configured(request.name):
            message = f"`{request.name}` is the name of a key in the settings, or of requests without one."
            raise invalid_request(message, param="name", code="name_taken")
        for place, model in enumerate(request.models or ()):
            try:
                check_model_name(model)
            except SettingsError as error:
                raise invalid_request(f"{error}.", param=f"models[{place}]") from None
        members = fields.given(**msgspec.structs.asdict(request))
        return msgspec.convert(members, SharedKey)


def _key_object(key: SharedKey) -> Json:
    fields_of_key = msgspec.structs.asdict(key)
    del fields_of_key["slot"]
    return {"object": "key", **fields_of_key}


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    except KeyExistsError as error:
        raise ApiError(409, _sentence(error), code="name_taken") from None
    except KeyFileError as error:
        raise ApiError(500, _sentence(error), code="key_file_unusable") from None


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
