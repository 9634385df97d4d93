"""What a running server says of its models."""

import http.client
import ssl
from typing import Any
from urllib.parse import urlsplit

import msgspec

from welldone.cli.exits import UsageError

_QUERY_TIMEOUT_S = 1.0  # a server on this machine answers in milliseconds, and most often there is none
_MAX_REPLY_BYTES = 4 * 2**20  # thousands of models


class RunningModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a running server."""

    name: str
    aliases: tuple[str, ...]
    state: str
    size_bytes: int | None
    parameters: int | None
    context_length: int | None


class NoServerError(Exception):
    """No server answers there."""


class ModelQueryError(Exception):
    """A server answers, but not this question. The message says what to do."""


def query_models(url: str, key: str | None) -> list[RunningModel]:
    """The models of the server at `url`; `SilentError` where there is none, `RefusedError` if it does not tell."""
    status, body = _get(url, key)
    if status in (401, 403):
        raise ModelQueryError(f"the server at {url} wants a key: --api-key KEY, or WELLDONE_API_KEY")
    try:
        listed = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        listed = None
    data = listed.get("data") if isinstance(listed, dict) else None
    if status != 200 or not isinstance(data, list):
        raise ModelQueryError(f"what answers at {url} lists no models (status {status})")
    return [_parse_model(model) for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]


def _get(url: str, key: str | None) -> tuple[int, bytes]:
    # http.client asks no proxy, whatever the environment says: a key shall go to the server and to nobody else.
    connection, path = _connect(url)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read(_MAX_REPLY_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise ModelQueryError(
            f"the certificate of the server at {url} is not trusted: {error.verify_message}; "
            "if it is yours, name its file in SSL_CERT_FILE"
        ) from None
    except (OSError, http.client.HTTPException):
        raise NoServerError from None
    except ValueError:
        raise UsageError("the key has characters that no key has") from None
    finally:
        connection.close()


def _connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:
        raise UsageError("--url is no address of a server; write http://127.0.0.1:8000") from None
    if not host or split.scheme not in ("http", "https") or not url.isprintable() or " " in url:
        raise UsageError(f"{url!r} is no address of a server; write http://127.0.0.1:8000")
    if split.username is not None:
        raise UsageError("a password in an address ends up in logs; use --api-key")
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=_QUERY_TIMEOUT_S), split.path.rstrip("/").removesuffix("/v1") + "/v1/models"


def _parse_model(model: dict[str, Any]) -> RunningModel:
    status, meta, aliases = model.get("status"), model.get("meta"), model.get("aliases")
    meta = meta if isinstance(meta, dict) else {}
    state = status.get("value") if isinstance(status, dict) else None
    return RunningModel(
        name=model["id"],
        aliases=tuple(word for word in aliases if isinstance(word, str)) if isinstance(aliases, list) else (),
        state=state if isinstance(state, str) else "served",
        size_bytes=_positive_int(meta.get("size")),
        parameters=_positive_int(meta.get("n_params")),
        context_length=_positive_int(meta.get("n_ctx_train")) or _positive_int(model.get("max_model_len")),
    )


def _positive_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
