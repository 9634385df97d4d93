"""Shared API keys: created with `welldone keys`, stored in Redis, and accepted by all servers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.live import keys_command
from tests.live.keys_command import chat_status, has_status
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.support.server import Running
from tests.support.upstream import Upstream, eventually, gateway

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]


def run_keys(redis: RealRedis, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run `welldone keys` and return stdout and stderr. The store is set in the environment."""
    stdout, stderr = keys_command.run_keys(arguments, {"WELLDONE_LIMITS_STORE": redis.url}, code)
    assert "canary" not in stdout + stderr
    return stdout, stderr


@contextmanager
def two_servers(folder: Path, backend: Upstream, redis: RealRedis) -> Iterator[list[Running]]:
    """Run two gateways without a configured key."""
    with ExitStack() as stack:
        servers = []
        for number in range(2):
            own_folder = folder / f"server-{number}"
            own_folder.mkdir()
            store = {"WELLDONE_LIMITS_STORE": redis.url}
            servers.append(stack.enter_context(gateway(own_folder, backend.url, key=None, environment=store)))
        yield servers


def test_a_shared_key_works_on_all_servers_until_it_is_removed(
    tmp_path: Path, backend: Upstream, redis: RealRedis
) -> None:
    with two_servers(tmp_path, backend, redis) as servers:
        assert [chat_status(server, None) for server in servers] == [401, 401]
        key, _ = run_keys(redis, "add", "ci", "--models", "hello,oth*", "--requests-per-minute", "5")
        for server in servers:
            eventually(partial(has_status, server, key, 200))
            assert chat_status(server, key, model="silent") == 403
            assert chat_status(server, f"{key}x") == 401
        statuses = Counter(chat_status(server, key) for server in servers * 5)
        assert set(statuses) == {200, 429}
        stored = redis.command("HGETALL", "welldone:keys") + redis.command("KEYS", "*")
        assert "ci" in stored
        assert key not in stored
        run_keys(redis, "remove", "ci")
        for server in servers:
            eventually(partial(has_status, server, key, 401))
            assert server.end() == 0
            assert key not in server.log.join() + server.stdout.join()


def test_without_redis_cached_keys_are_accepted_and_other_keys_get_a_503(
    tmp_path: Path, backend: Upstream, redis: RealRedis
) -> None:
    used, _ = run_keys(redis, "add", "used")
    unused, _ = run_keys(redis, "add", "unused")
    with two_servers(tmp_path, backend, redis) as (server, _):
        assert chat_status(server, used) == 200
        redis.kill()
        assert [chat_status(server, key) for key in (used, unused, used)] == [200, 503, 200]


def test_the_command_lists_names_and_limits_without_the_keys(redis: RealRedis) -> None:
    assert run_keys(redis, "list") == ("", "there are no keys: welldone keys add NAME creates one")
    key, stderr = run_keys(redis, "add", "ci", "--models", "a,b*", "--tokens-per-minute", "0")
    other, _ = run_keys(redis, "add", "boss", "--admin", "--requests-per-minute", "9")
    assert key.startswith("wd-")
    assert key != other
    assert "not shown again" in stderr
    listing, _ = run_keys(redis, "list")
    assert listing.splitlines() == [
        "boss  all models; 9 requests per minute; admin",
        "ci    a, b*; unlimited tokens per minute",
    ]
    redis.command("HSET", "welldone:keys", "00", "no key")
    assert run_keys(redis, "list")[0] == listing
    _, stderr = run_keys(redis, "add", "ci", code=2)
    assert stderr == "there already is a key ci: choose another name, or remove it first"
    run_keys(redis, "remove", "ci")
    _, stderr = run_keys(redis, "remove", "ci", code=2)
    assert stderr == "there is no key ci; welldone keys list shows the keys"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("add", "write welldone keys add NAME, welldone keys remove NAME or welldone keys list"),
        ("list ci", "write welldone keys add NAME, welldone keys remove NAME or welldone keys list"),
        ("add a/b", "a key needs a name of 1 to 64 letters, digits, dots, - and _, and limits of 0 (none) or more"),
        ("add a --requests-per-minute=-1", "limits of 0 (none) or more"),
        ("add anonymous", "anonymous is the name of requests without a key: choose another name"),
        ("add a --limits-store http://canary", "--limits-store should be a URL such as redis://HOST:6379/0"),
    ],
)
def test_a_usage_error_is_one_line(redis: RealRedis, arguments: str, message: str) -> None:
    _, stderr = run_keys(redis, *arguments.split(), code=2)
    assert message in stderr
    assert "\n" not in stderr


def test_a_key_with_the_name_of_a_configured_key_is_rejected(tmp_path: Path, redis: RealRedis) -> None:
    """A configured key takes precedence, so the shared key would never be accepted."""
    file = tmp_path / "welldone.toml"
    file.write_text('[keys.team]\nkey = "wd-canary-0123456789"\n')
    stdout, stderr = run_keys(redis, "add", "team", "--config", str(file), code=2)
    assert (stdout, stderr) == ("", "the settings already have a key team, which takes precedence")
    assert run_keys(redis, "list")[0] == ""


def test_an_unavailable_store_is_reported_in_one_line(redis: RealRedis) -> None:
    redis.kill()
    stdout, stderr = run_keys(redis, "add", "ci", code=3)
    assert stdout == ""
    assert stderr.startswith("the store of the keys cannot be used: ")
    assert "\n" not in stderr


def test_a_password_in_an_error_of_redis_is_hidden() -> None:
    """Redis repeats the arguments of an unknown command in its error."""
    with real_redis("--rename-command", "AUTH", "") as redis:
        redis.command("PING")
        _, stderr = run_keys(redis, "list", "--limits-store", redis.url_with("canary-of-redis"), code=3)
    assert "AUTH" in stderr
    assert "[hidden]" in stderr
