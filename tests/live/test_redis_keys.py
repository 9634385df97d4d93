"""Keys that are given out once, with `welldone keys`, and taken by all front ends."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.live.faults import begin
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.live.server import LIMIT_S, Running
from tests.live.upstream import Upstream, eventually, gateway

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]


def keys(redis: RealRedis, *words: str, code: int = 0) -> tuple[str, str]:
    """What `welldone keys` says, and what beside it. The address comes in the environment, where nobody sees it."""
    ended = subprocess.run(
        [sys.executable, "-m", "welldone", "keys", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "WELLDONE_LIMITS_STORE": redis.url},
    )
    assert ended.returncode == code, ended.stderr
    assert "canary" not in ended.stdout + ended.stderr
    return ended.stdout.strip(), ended.stderr.strip()


@contextmanager
def fronts(folder: Path, behind: Upstream, redis: RealRedis) -> Iterator[list[Running]]:
    """Two servers without a key of their own."""
    with ExitStack() as stack:
        made = []
        for number in range(2):
            place = folder / f"front-{number}"
            place.mkdir()
            store = {"WELLDONE_LIMITS_STORE": redis.url}
            made.append(stack.enter_context(gateway(place, behind.url, key=None, environment=store)))
        yield made


def ask(server: Running, key: str | None, model: str = "hello") -> int:
    server.key = key
    with begin(server, model=model, stream=False) as line:
        return line.reply().status


def answers(server: Running, key: str, status: int) -> bool:
    return ask(server, key) == status


def test_a_key_opens_all_front_ends_until_it_is_removed(tmp_path: Path, behind: Upstream, redis: RealRedis) -> None:
    with fronts(tmp_path, behind, redis) as servers:
        assert [ask(server, None) for server in servers] == [401, 401]
        key, _ = keys(redis, "add", "ci", "--models", "hello,oth*", "--requests-per-minute", "5")
        for server in servers:
            eventually(partial(answers, server, key, 200))
            assert ask(server, key, model="silent") == 403
            assert ask(server, f"{key}x") == 401
        statuses = Counter(ask(server, key) for server in servers * 5)
        assert set(statuses) == {200, 429}
        kept = redis.say("HGETALL", "welldone:keys") + redis.say("KEYS", "*")
        assert "ci" in kept
        assert key not in kept
        keys(redis, "remove", "ci")
        for server in servers:
            eventually(partial(answers, server, key, 401))
            assert server.end() == 0
            assert key not in server.log.join() + server.said.join()


def test_known_keys_stay_good_without_redis_and_unknown_ones_stay_out(
    tmp_path: Path, behind: Upstream, redis: RealRedis
) -> None:
    known, _ = keys(redis, "add", "known")
    fresh, _ = keys(redis, "add", "fresh")
    with fronts(tmp_path, behind, redis) as (server, _):
        assert ask(server, known) == 200
        redis.kill()
        assert [ask(server, key) for key in (known, fresh, known)] == [200, 401, 200]


def test_the_command_lists_what_was_given_out_and_no_key(redis: RealRedis) -> None:
    assert keys(redis, "list") == ("", "there are no keys: welldone keys add NAME makes one")
    key, beside = keys(redis, "add", "ci", "--models", "a,b*", "--tokens-per-minute", "0")
    other, _ = keys(redis, "add", "boss", "--admin", "--requests-per-minute", "9")
    assert key.startswith("wd-")
    assert key != other
    assert "not shown again" in beside
    said, _ = keys(redis, "list")
    assert said.splitlines() == [
        "boss  all models; 9 requests a minute; admin",
        "ci    a, b*; unlimited tokens a minute",
    ]
    redis.say("HSET", "welldone:keys", "00", "no key")
    assert keys(redis, "list")[0] == said
    _, beside = keys(redis, "add", "ci", code=2)
    assert beside == "there is a key ci already: choose another name, or remove it first"
    keys(redis, "remove", "ci")
    _, beside = keys(redis, "remove", "ci", code=2)
    assert beside == "there is no key ci; welldone keys list shows those that are there"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("add", "write welldone keys add NAME, welldone keys remove NAME or welldone keys list"),
        ("list ci", "write welldone keys add NAME, welldone keys remove NAME or welldone keys list"),
        ("add a/b", "a key has a name of 1 to 64 letters, digits, dots, - and _, and its limits are 0 (none) or more"),
        ("add a --requests-per-minute=-1", "its limits are 0 (none) or more"),
        ("add anonymous", "anonymous is what those without a key are called: choose another name"),
        ("add a --limits-store http://canary", "--limits-store should be a URL such as redis://HOST:6379/0"),
    ],
)
def test_a_mistake_is_one_line(redis: RealRedis, words: str, said: str) -> None:
    _, beside = keys(redis, *words.split(), code=2)
    assert said in beside
    assert "\n" not in beside


def test_a_key_that_would_open_nothing_is_not_given_out(tmp_path: Path, redis: RealRedis) -> None:
    """A server takes no shared key with the name of one of its own."""
    file = tmp_path / "welldone.toml"
    file.write_text('[keys.team]\nkey = "wd-canary-0123456789"\n')
    said, beside = keys(redis, "add", "team", "--config", str(file), code=2)
    assert (said, beside) == ("", "the settings have a key team, beside which this one would open nothing")
    assert keys(redis, "list")[0] == ""


def test_a_store_that_is_away_is_said_in_one_line(redis: RealRedis) -> None:
    redis.kill()
    said, beside = keys(redis, "add", "ci", code=3)
    assert said == ""
    assert beside.startswith("the store of the keys cannot be used: ")
    assert "\n" not in beside


def test_a_redis_that_repeats_its_password_is_not_repeated() -> None:
    """It says so of a command that it does not know, with the first words of it."""
    with real_redis("--rename-command", "AUTH", "") as redis:
        redis.say("PING")
        _, beside = keys(redis, "list", "--limits-store", redis.url_with("canary-of-redis"), code=3)
    assert "AUTH" in beside
    assert "[hidden]" in beside
