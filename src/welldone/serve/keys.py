"""Who asks: API keys, read by one function from whichever header they come in, and never shown.

Only digests are kept and compared: `hmac.compare_digest` takes the same time for a key that is nearly right, and the
loop never ends early, so that time tells nothing about any key.
"""

import hashlib
import hmac
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from welldone.net.patterns import matches_wildcard
from welldone.net.secrets import MIN_KEY_LENGTH as MIN_KEY_LENGTH
from welldone.net.secrets import is_weak_key as is_weak_key
from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.settings import KeySettings

ANONYMOUS = "anonymous"
"""The name of everyone, on a server without keys."""

MAX_KEYS = 1_000
"""Every request is compared with every key, at some 0.07 microseconds each: a tenth of a millisecond at most."""

_FILE_LIMIT_BYTES = 256 * 2**10
"""Of a key file: `MOST_KEYS` lines of 256 characters."""

_KEY_HEADERS = ("x-api-key", "api-key")
"""Headers that hold nothing but the key: those of Anthropic's and of Azure's clients."""


class KeyFile(NamedTuple):
    """What a file of keys holds, and what its owner should know about it."""

    keys: list[str]
    warning: str | None


class ApiKeys:
    """The keys that open this server: plain ones with all rights, and those with a name and rights of their own."""

    def __init__(self, keys: Iterable[str], named: Iterable[KeySettings] = ()) -> None:
        """Take the keys. `ValueError` for one that could never be sent, or that would open to everyone."""
        plain = dict.fromkeys(keys)
        owners = {key: f"API key {number}" for number, key in enumerate(plain, 1)}
        self._digests = [(key_digest(key), _derived_principal(key)) for key in plain]
        self._admins = {name for _, name in self._digests}
        self._scrapers: set[str] = set()
        self._models: dict[str, tuple[str, ...]] = {}
        """The patterns of those who may not use all models."""
        for settings in named:
            owner = f"key {settings.name!r}"
            if settings.key in owners:
                raise ValueError(f"{owner} and {owners[settings.key]} are the same: choose another")
            owners[settings.key] = owner
            self._digests.append((key_digest(settings.key), settings.name))
            if settings.models:
                self._models[settings.name] = settings.models
            if settings.admin:
                self._admins.add(settings.name)
            if settings.metrics:
                self._scrapers.add(settings.name)
        if len(owners) > MAX_KEYS:
            raise ValueError(f"{len(owners)} keys are too many: {MAX_KEYS} at most")
        for key, owner in owners.items():
            if why := invalid_key_reason(key):
                raise ValueError(f"{owner} {why}")

    @property
    def allows_anonymous(self) -> bool:
        """Whether there are no keys, so that everyone may ask."""
        return not self._digests

    @property
    def has_several_principals(self) -> bool:
        """Whether requests come from several principals, who must be kept apart."""
        return len(self._digests) > 1

    @property
    def principals(self) -> list[str]:
        """All who may ask, in an order that the settings alone decide."""
        return [name for _, name in self._digests] or [ANONYMOUS]

    def allowed_models(self, principal: str) -> tuple[str, ...] | None:
        """The names and patterns of the models that a key is for; None: all models."""
        return self._models.get(principal)

    def may_use(self, principal: str, model: str) -> bool:
        """Whether this model, by the name that the client sends, is one of those that the key is for."""
        patterns = self.allowed_models(principal)
        return patterns is None or any(matches_wildcard(pattern, model) for pattern in patterns)

    def may_read_metrics(self, principal: str) -> bool:
        """Whether a key may read the metrics, which show all models and upstreams: one for some models may not, unless
        its table says so."""
        return self.allowed_models(principal) is None or self.is_admin(principal) or principal in self._scrapers

    def check_metrics(self, principal: str) -> None:
        """Let only those pass who may read the metrics.

        Raises:
            ApiError: 403.
        """
        if not self.may_read_metrics(principal):
            message = "This API key is for some models only, and /metrics shows all: set metrics = true in its table."
            raise ApiError(403, message, code="not_allowed")

    def is_admin(self, principal: str) -> bool:
        """Whether this one may see the whole server and steer it: plain keys may, and everyone where there are none."""
        return self.allows_anonymous or principal in self._admins

    def check_admin(self, principal: str) -> None:
        """Let only those pass who may see and steer the whole server.

        Raises:
            ApiError: 403.
        """
        if not self.is_admin(principal):
            message = "This is for admins: a plain key, or one with admin = true in its table."
            raise ApiError(403, message, code="not_allowed")

    def principal(self, headers: Mapping[str, str]) -> str:
        """The name of the key that came, its own or a short one, for limits and logs; it does not tell the key.

        Raises:
            ApiError: 401 where no key or an unknown one came, 400 where two different ones came.
        """
        if self.allows_anonymous:
            return ANONYMOUS
        name = self._principal_of(presented_digest(headers))
        if name is None:
            raise unknown_key_error()
        return name

    async def authenticate(self, headers: Mapping[str, str]) -> str:
        """As `principal`, also where others must be asked first."""
        return self.principal(headers)

    def _principal_of(self, presented: bytes) -> str | None:
        found = None
        for known, name in self._digests:
            if hmac.compare_digest(known, presented):
                found = name
        return found


def presented_digest(headers: Mapping[str, str]) -> bytes:
    """The digest of the key that came.

    Raises:
        ApiError: 401 where no key came, 400 where two different ones came.
    """
    given = _keys_in_headers(headers)
    if not given:
        raise _unauthorized(
            "No API key came with this request. Send it as 'Authorization: Bearer YOUR_API_KEY' (or 'x-api-key')."
        )
    if len(given) > 1:
        raise invalid_request(
            "This request carries different API keys in its headers. Send one.", code="invalid_api_key"
        )
    return key_digest(given.pop())


def unknown_key_error() -> ApiError:
    """The refusal of a key that nobody has given out."""
    return _unauthorized("The API key of this request is not one that this server knows.")


def make_key() -> str:
    """A new key: 192 bits of chance."""
    return f"wd-{secrets.token_urlsafe(24)}"


def invalid_key_reason(key: str) -> str | None:
    """Why a key cannot be one."""
    if not key:
        return "is empty"
    if not all("!" <= letter <= "~" for letter in key):
        return "has a blank or a character that an HTTP header cannot carry"
    return None


def read_key_file(path: Path, *, allows_weak: bool = False) -> KeyFile:
    """The keys in a file, one a line; empty lines and those that begin with `#` do not count.

    Raises:
        ValueError: with a text for the user. It names lines, and never what is in them.
    """
    keys = []
    text, is_for_all = _read_text(path)
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        is_refused = is_weak_key(key) and not allows_weak
        why = invalid_key_reason(key) or (f"is shorter than {MIN_KEY_LENGTH} characters" if is_refused else None)
        if why:
            raise ValueError(f"the API key in line {number} of {path} {why}")
        keys.append(key)
    if not keys:
        raise ValueError(f"there is no API key in {path}: write one a line")
    note = f"every user of this machine can read the keys in {path}: chmod 600 {path}" if is_for_all else None
    return KeyFile(keys, note)


def _read_text(path: Path) -> tuple[str, bool]:
    """What the file says, and whether all users may read it."""
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            data = file.read(_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read the API keys in {path}: {error.strerror}") from error
    if len(data) > _FILE_LIMIT_BYTES:
        raise ValueError(f"{path} has more than {_FILE_LIMIT_BYTES // 2**10} KiB: is it a file of API keys?")
    try:
        return data.decode("utf-8-sig"), stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text: is it a file of API keys?") from None


def _keys_in_headers(headers: Mapping[str, str]) -> set[str]:
    """The different keys in the headers. A mapping that holds a name twice gives both among its items."""
    found = set()
    for name, value in headers.items():
        lower = name.lower()
        if lower in _KEY_HEADERS:
            found.add(value.strip())
        elif lower == "authorization":
            scheme, _, rest = value.strip().partition(" ")
            found.add(rest.strip() if scheme.lower() == "bearer" else "")
    return found - {""}


def key_digest(key: str) -> bytes:
    """All that is kept of a key."""
    # A header may hold any byte, which arrives as half a surrogate pair.
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _derived_principal(key: str) -> str:
    return f"key-{hashlib.sha256(b'welldone principal: ' + key.encode()).hexdigest()[:8]}"


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
