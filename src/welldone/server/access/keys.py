"""Authentication with API keys: configured ones, and those in a key file or the shared store.

Only digests are stored and compared. `hmac.compare_digest` and a loop without early exit keep the comparison constant
in time.
"""

import hashlib
import hmac
import logging
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from welldone.config.server import KeySettings
from welldone.config.settings import matches_wildcard
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.redaction import MIN_KEY_LENGTH, is_weak_key
from welldone.server.access.store import StoreUnavailableError
from welldone.server.observe import log

ANONYMOUS = "anonymous"
"""The principal of all requests to a server without keys."""

MAX_KEYS = 1_000
"""Every request is compared with every key, about 0.07 µs each: at most 0.1 ms."""

_FILE_LIMIT_BYTES = 256 * 2**10
"""`MAX_KEYS` lines of 256 characters."""

_MISSING_KEY = (
    "This request has no API key. Send it as 'Authorization: Bearer YOUR_API_KEY' (or 'x-api-key'). "
    "The operator of the server sets keys with --api-key, or allows requests without one with --no-api-key; "
    "a key that the server generated is in its output at the start."
)
_UNKNOWN_KEY = "The API key of this request is invalid."
_KEY_HEADERS = ("x-api-key", "api-key", "x-goog-api-key")
"""Headers whose value is the key: of Anthropic's, Azure's and Google's clients."""


class ApiKeys:
    """The configured keys: plain ones with all permissions, and named ones with their own."""

    def __init__(self, keys: Iterable[str], named: Iterable[KeySettings] = ()) -> None:
        """Raises `ValueError` for keys that are empty, duplicate, or cannot be sent in a header."""
        self.reload(keys, named)

    def reload(self, keys: Iterable[str], named: Iterable[KeySettings] = ()) -> None:
        """Replace all keys. Raises `ValueError` as the constructor; then nothing has changed."""
        plain = dict.fromkeys(keys)
        owners = {key: f"API key {number}" for number, key in enumerate(plain, 1)}
        all_keys = [KeySettings(name=_derived_principal(key), key=key, admin=True) for key in plain]
        for settings in named:
            owner = f"key {settings.name!r}"
            if settings.key in owners:
                raise ValueError(f"{owner} and {owners[settings.key]} are the same: choose another")
            owners[settings.key] = owner
            all_keys.append(settings)
        if len(owners) > MAX_KEYS:
            raise ValueError(f"{len(owners)} keys are too many: {MAX_KEYS} at most")
        for key, owner in owners.items():
            if reason := invalid_key_reason(key):
                raise ValueError(f"{owner} {reason}")
        self._digests = [(key_digest(settings.key), settings.name) for settings in all_keys]
        self._by_name: dict[str, KeySettings | SharedKey] = {settings.name: settings for settings in all_keys}
        self._owners: dict[str, str] = {name: digest.hex() for digest, name in self._digests}
        self.allows_anonymous: bool = not self._digests
        """Whether there are no keys, so that requests need none."""
        self.has_several_principals: bool = len(self._digests) > 1
        """Whether there may be several principals, whose data must be separated."""

    @property
    def has_configured(self) -> bool:
        """Whether the settings have keys."""
        return bool(self._digests)

    @property
    def principals(self) -> list[str]:
        """All principals, in the order of the settings (the same in every worker)."""
        return [name for _, name in self._digests] or [ANONYMOUS]

    def owner(self, principal: str) -> str:
        """Identify the key of a principal in a store: another server may have another key of the same name."""
        return self._owners.get(principal, principal)

    def allowed_models(self, principal: str) -> tuple[str, ...] | None:
        """Names and patterns of the models that a principal may use; None: all. A removed key has none."""
        if principal == ANONYMOUS:
            return None
        key = self._by_name.get(principal)
        return () if key is None else key.models or None

    def may_use(self, principal: str, model: str) -> bool:
        """Whether a principal may use a model, by the name in its request."""
        patterns = self.allowed_models(principal)
        return patterns is None or any(matches_wildcard(pattern, model) for pattern in patterns)

    def may_read_metrics(self, principal: str) -> bool:
        """Whether a principal may read /metrics, which shows all models and upstreams.

        Keys restricted to some models need `metrics = true`.
        """
        key = self._by_name.get(principal)
        has_all_models = self.allowed_models(principal) is None
        return has_all_models or self.is_admin(principal) or (key is not None and key.metrics)

    def check_metrics(self, principal: str) -> None:
        """Check `may_read_metrics`.

        Raises:
            ApiError: 403.
        """
        if not self.may_read_metrics(principal):
            message = "This API key is restricted to some models, and /metrics shows all: set metrics = true for it."
            raise ApiError(403, message, code="not_allowed")

    def is_configured(self, name: str) -> bool:
        """Whether this is the name of a configured key, which takes precedence over a stored one."""
        return any(name == known for _, known in self._digests)

    def is_admin(self, principal: str) -> bool:
        """Whether a principal may see and control the whole server: plain keys may; without keys, everyone."""
        key = self._by_name.get(principal)
        return self.allows_anonymous or (key is not None and key.admin)

    def check_admin(self, principal: str) -> None:
        """Check `is_admin`.

        Raises:
            ApiError: 403.
        """
        if not self.is_admin(principal):
            message = "This needs an admin key: a plain key, or one with admin = true."
            raise ApiError(403, message, code="not_allowed")

    def principal(self, headers: Mapping[str, str]) -> str:
        """The principal of a request: the name of its key, or a short digest of a plain key.

        Raises:
            ApiError: 401 for a missing or unknown key, 400 for two different keys.
        """
        if self.allows_anonymous:
            return ANONYMOUS
        name = self._principal_of(presented_digest(headers))
        if name is None:
            raise _unauthorized(_UNKNOWN_KEY)
        return name

    async def authenticate(self, headers: Mapping[str, str]) -> str:
        """As `principal`; may look the key up in the shared store."""
        return self.principal(headers)

    def _principal_of(self, presented: bytes) -> str | None:
        principal = None
        for known, name in self._digests:
            if hmac.compare_digest(known, presented):
                principal = name
        return principal


def presented_digest(headers: Mapping[str, str]) -> bytes:
    """The digest of the key in the headers of a request.

    Raises:
        ApiError: 401 for a missing key, 400 for two different keys.
    """
    presented = set()
    for name, value in headers.items():  # multi-dicts yield repeated names
        lower = name.lower()
        if lower in _KEY_HEADERS:
            presented.add(value.strip())
        elif lower == "authorization":
            scheme, _, rest = value.strip().partition(" ")
            presented.add(rest.strip() if scheme.lower() == "bearer" else "")
    presented.discard("")
    if not presented:
        raise _unauthorized(_MISSING_KEY)
    if len(presented) > 1:
        raise invalid_request("This request has different API keys in its headers. Send one.", code="invalid_api_key")
    return key_digest(presented.pop())


def make_key() -> str:
    """A new random key of 192 bits."""
    return f"wd-{secrets.token_urlsafe(24)}"


def invalid_key_reason(key: str) -> str | None:
    """Why a key is invalid; None if it is valid."""
    if not key:
        return "is empty"
    if not all("!" <= character <= "~" for character in key):
        return "has a space or a character that an HTTP header cannot contain"
    return None


def read_key_file(path: Path, *, allows_weak: bool = False) -> tuple[list[str], str | None]:
    """Return the keys of a file with one per line, and a warning about its permissions.

    Empty lines and lines that begin with `#` are ignored.

    Raises:
        ValueError: with a message for the user, which does not contain keys.
    """
    keys = []
    text, is_world_readable = _read_text(path)
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        is_too_weak = is_weak_key(key) and not allows_weak
        reason = invalid_key_reason(key) or (f"is shorter than {MIN_KEY_LENGTH} characters" if is_too_weak else None)
        if reason:
            raise ValueError(f"the API key in line {number} of {path} {reason}")
        keys.append(key)
    if not keys:
        raise ValueError(f"there is no API key in {path}: write one per line")
    warning = f"every user of this machine can read the keys in {path}: run chmod 600 {path}"
    return keys, warning if is_world_readable else None


def _read_text(path: Path) -> tuple[str, bool]:
    """The text of the file, and whether all users may read it."""
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


def key_digest(key: str) -> bytes:
    """SHA-256 of a key, the only form in which it is stored."""
    # Bytes of a header that are not UTF-8 are decoded to lone surrogates.
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _derived_principal(key: str) -> str:
    return f"key-{hashlib.sha256(b'welldone principal: ' + key.encode()).hexdigest()[:8]}"


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


# Keys in a key file or in the shared store, which may change while the server runs, with a cache.
#
# Keys are looked up by digest: the timing of the lookup may reveal parts of a digest, from which no key can be derived.
# While the store is unavailable, cached keys stay valid and all others get a 503: they may be valid.


CACHE_TTL_S = 5.0
"""How long a revoked key is still accepted."""
REFRESH_S = 4.0
"""Interval of lookups per key: one request refreshes the entry, while others use the cached one."""
NEGATIVE_TTL_S = 1.0
"""How long an unknown key is rejected without a lookup; a new key may be rejected for as long."""

MAX_CACHED = 10_000  # about 5 MB
MAX_NEGATIVE_CACHED = 10_000  # about 2 MB; filled by wrong keys
UNUSED_TTL_S = 3_600.0
"""Unused entries expire: the key may have been revoked since, and would be accepted while the store is unavailable."""

_MAX_MODELS = 1_000
"""Patterns of one key. A request is matched against each: at most a millisecond."""

_PerMinute = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


class SharedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored entry of a key, without the key. The fields are those of `[keys.NAME]`."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    models: Annotated[tuple[str, ...], msgspec.Meta(max_length=_MAX_MODELS)] = ()
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    admin: bool = False
    metrics: bool = False
    slot: Annotated[int, msgspec.Meta(ge=0, lt=MAX_KEYS)] | None = None
    """Place of its rate limit counters, which the workers of a server share; only in a key file."""


KeyLookup = Callable[[bytes], Awaitable[bytes | None]]
"""Returns the stored entry of the key with this digest, or None. Raises `StoreUnavailableError`."""


def parse_key(value: bytes) -> SharedKey | None:
    """Parse a stored entry; None if it is invalid."""
    try:
        return msgspec.json.decode(value, type=SharedKey)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class _CachedKey(msgspec.Struct):
    key: SharedKey
    refresh_at: float
    expires_at: float


class SharedApiKeys(ApiKeys):
    """The configured keys and those that are looked up. `on_found` is called with each key that was found."""

    def __init__(
        self,
        keys: Iterable[str],
        named: Iterable[KeySettings] = (),
        *,
        look_up: KeyLookup,
        on_found: Callable[[SharedKey], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = look_up
        self._on_found = on_found
        self._clock = clock
        self._cached: dict[bytes, _CachedKey] = {}
        self._negative_cache: dict[bytes, float] = {}  # expiry of unknown keys
        super().__init__(keys, named)

    def reload(self, keys: Iterable[str], named: Iterable[KeySettings] = ()) -> None:
        """Replace the configured keys."""
        super().reload(keys, named)
        self.allows_anonymous = False  # requests need a key even while there is none
        self.has_several_principals = True  # there may be any number of keys
        self._local_principals = {ANONYMOUS, *self._by_name}
        self._cached = {
            digest: cached for digest, cached in self._cached.items() if cached.key.name not in self._by_name
        }
        self._by_name |= {cached.key.name: cached.key for cached in self._cached.values()}
        self._owners |= {cached.key.name: digest.hex() for digest, cached in self._cached.items()}

    async def authenticate(self, headers: Mapping[str, str]) -> str:
        """The principal of a request.

        Raises:
            ApiError: as `principal`; 503 for a key that only the store knows, while it is unavailable.
        """
        digest = presented_digest(headers)
        name = self._principal_of(digest)
        if name is not None:
            return name
        key = await self._look_up(digest)
        if key is None:
            raise _unauthorized(_UNKNOWN_KEY)
        return key.name

    async def _look_up(self, digest: bytes) -> SharedKey | None:
        cached, now = self._cached.get(digest), self._clock()
        if cached is not None and now > cached.expires_at + UNUSED_TTL_S:
            self._evict(digest)
            cached = None
        if cached is not None:
            if now < cached.refresh_at:
                return cached.key
            cached.refresh_at = cached.expires_at
        elif now < self._negative_cache.get(digest, now):
            return None
        try:
            value = await self._find(digest)
        except StoreUnavailableError:
            if cached is None:
                raise
            cached.expires_at = now  # restarts UNUSED_TTL_S
            return cached.key
        self._evict(digest)
        key = None if value is None else self._checked_key(value)
        self._cache_result(digest, key)
        return key

    def _checked_key(self, value: bytes) -> SharedKey | None:
        key = parse_key(value)
        if key is None:
            log.event(logging.WARNING, "ignoring an invalid key in the store")
            return None
        if key.name in self._local_principals:  # it would get the permissions of the local key
            message = "ignoring a stored key that has the name of a configured key"
            log.event(logging.WARNING, message, {"key": key.name})
            return None
        return key

    def _cache_result(self, digest: bytes, key: SharedKey | None) -> None:
        now = self._clock()
        if key is None:
            self._negative_cache[digest] = now + NEGATIVE_TTL_S
            if len(self._negative_cache) > MAX_NEGATIVE_CACHED:
                del self._negative_cache[next(iter(self._negative_cache))]
            return
        self._cached[digest] = _CachedKey(key, now + REFRESH_S, now + CACHE_TTL_S)
        self._by_name[key.name], self._owners[key.name] = key, digest.hex()
        if len(self._owners) > len(self._local_principals) + MAX_CACHED:  # not in `_evict`: a copy may be deleted later
            del self._owners[next(name for name in self._owners if name not in self._local_principals)]
        if len(self._cached) > MAX_CACHED:
            self._evict(next(iter(self._cached)))
        self._on_found(key)

    def _evict(self, digest: bytes) -> None:
        self._negative_cache.pop(digest, None)
        cached = self._cached.pop(digest, None)
        if cached is not None and self._by_name.get(cached.key.name) is cached.key:
            del self._by_name[cached.key.name]
