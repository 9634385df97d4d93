"""Who asks: API keys, read by one function from whichever header they come in, and never shown.

Only digests are kept and compared: `hmac.compare_digest` takes the same time for a key that is nearly right, and the
loop never ends early, so that time tells nothing about any key.
"""

import hashlib
import hmac
import logging
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from welldone.config.server import KeySettings
from welldone.config.settings import matches_wildcard
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.store import SharedStore, StoreUnavailableError
from welldone.server.observe import log

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


# Keys that an operator gives out once, for all front ends: they are in the store, and what was asked is remembered.
#
# A key is looked for by its digest. How long that takes may tell something of a digest, from which nobody makes a key.
# Where the store is away, the keys that are remembered stay good, and no other gets in.


CACHE_TTL_S = 5.0
"""A key that was taken away opens for so long yet."""
REFRESH_S = 4.0
"""Each key asks the store as often as that: one request does, and the others go on with what is known."""
NEGATIVE_TTL_S = 1.0
"""A key that was given out meanwhile waits so long. Who tries one wrong key again and again is not asked about."""

MAX_CACHED = 10_000  # some 5 MB
MAX_NEGATIVE_CACHED = 10_000  # some 2 MB: whoever guesses can fill it, and nothing else
UNUSED_TTL_S = 3_600.0
"""A key that nobody has used for so long is forgotten. It may have been taken away since, and would open again while
the store is away."""

_MAX_MODELS = 1_000
"""Patterns of one key. A request is held against each of them: a millisecond at most."""

_PerMinute = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


class SharedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as the store has it, without the key. The fields are those of `[keys.NAME]`."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    models: Annotated[tuple[str, ...], msgspec.Meta(max_length=_MAX_MODELS)] = ()
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    admin: bool = False
    metrics: bool = False


def parse_key(value: bytes) -> SharedKey | None:
    """A key as it is written in the store; None where it is written in another way."""
    try:
        return msgspec.json.decode(value, type=SharedKey)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _CachedKey:
    """A key that is remembered."""

    def __init__(self, key: SharedKey, now: float) -> None:
        self.key = key
        self.refresh_at = now + REFRESH_S
        self.expires_at = now + CACHE_TTL_S


class SharedApiKeys(ApiKeys):
    """The keys of this server, and those in the store. `on_found` is told each key that was looked up."""

    def __init__(
        self,
        keys: Iterable[str],
        named: Iterable[KeySettings] = (),
        *,
        store: SharedStore,
        on_found: Callable[[SharedKey], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(keys, named)
        self._local_principals = {ANONYMOUS, *super().principals}
        self._store = store
        self._on_found = on_found
        self._clock = clock
        self._cached: dict[bytes, _CachedKey] = {}
        self._negative_cache: dict[bytes, float] = {}
        """Until when they are taken to be unknown."""
        self._by_name: dict[str, SharedKey] = {}

    @property
    def allows_anonymous(self) -> bool:
        """Nobody gets in without a key, also while the store has none."""
        return False

    @property
    def has_several_principals(self) -> bool:
        """The store may give out any number of keys."""
        return True

    @property
    def cache_sizes(self) -> tuple[int, int]:
        """How many keys, and how many that are none."""
        return len(self._cached), len(self._negative_cache)

    def allowed_models(self, principal: str) -> tuple[str, ...] | None:
        """The names and patterns of the models that a key is for; None: all models. A key that is gone has none."""
        if principal in self._local_principals:
            return super().allowed_models(principal)
        key = self._by_name.get(principal)
        return () if key is None else key.models or None

    def is_admin(self, principal: str) -> bool:
        """Whether this one may see the whole server and steer it."""
        key = self._by_name.get(principal)
        return super().is_admin(principal) or (key is not None and key.admin)

    def may_read_metrics(self, principal: str) -> bool:
        """Whether a key may read the metrics."""
        key = self._by_name.get(principal)
        return super().may_read_metrics(principal) or (key is not None and key.metrics)

    async def authenticate(self, headers: Mapping[str, str]) -> str:
        """The name of the key that came."""
        came = presented_digest(headers)
        name = self._principal_of(came)
        if name is not None:
            return name
        key = await self._look_up(came)
        if key is None:
            raise unknown_key_error()
        return key.name

    async def _look_up(self, digest: bytes) -> SharedKey | None:
        held, now = self._cached.get(digest), self._clock()
        if held is not None and now > held.expires_at + UNUSED_TTL_S:
            self._evict(digest)
            held = None
        if held is not None:
            if now < held.refresh_at:
                return held.key
            held.refresh_at = held.expires_at
        elif now < self._negative_cache.get(digest, now):
            return None
        try:
            value = await self._store.call(lambda link: link.key(digest.hex()))
        except StoreUnavailableError:
            if held is None:
                return None
            held.expires_at = now  # it is in use
            return held.key
        self._evict(digest)
        key = None if value is None else self._checked_key(value)
        self._cache_result(digest, key)
        return key

    def _checked_key(self, value: bytes) -> SharedKey | None:
        key = parse_key(value)
        if key is None:
            log.event(logging.WARNING, "a key in the store is not written as it should be, and opens nothing")
            return None
        if key.name in self._local_principals:  # its rights would be those of another
            log.event(
                logging.WARNING,
                "a key in the store has the name of one of this server, and opens nothing here",
                {"key": key.name},
            )
            return None
        return key

    def _cache_result(self, digest: bytes, key: SharedKey | None) -> None:
        now = self._clock()
        if key is None:
            self._negative_cache[digest] = now + NEGATIVE_TTL_S
            if len(self._negative_cache) > MAX_NEGATIVE_CACHED:
                del self._negative_cache[next(iter(self._negative_cache))]
            return
        self._cached[digest] = _CachedKey(key, now)
        self._by_name[key.name] = key
        if len(self._cached) > MAX_CACHED:
            self._evict(next(iter(self._cached)))
        self._on_found(key)

    def _evict(self, digest: bytes) -> None:
        self._negative_cache.pop(digest, None)
        held = self._cached.pop(digest, None)
        if held is not None and self._by_name.get(held.key.name) is held.key:
            del self._by_name[held.key.name]
