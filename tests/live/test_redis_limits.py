"""Limits that two front ends share in a real Redis, also when it goes away, says nothing, or refuses."""

import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.live.faults import begin, until
from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.live.server import Running
from tests.live.upstream import Upstream, gateway

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]
PER_MINUTE = 6
"""One more every ten seconds: few enough that a busy machine is not taken for a mistake."""
UP = "welldone_limits_store_up"
AWAY, BACK = "store of shared limits and keys is away", "store of shared limits and keys is back"


@contextmanager
def fronts(folder: Path, behind: Upstream, url: str, *options: str, count: int = 2) -> Iterator[list[Running]]:
    """Front ends with one limit between them."""
    words = ["--requests-per-minute", str(PER_MINUTE), *options]
    with ExitStack() as stack:
        made = []
        for number in range(count):
            place = folder / f"front-{number}"
            place.mkdir()
            more = f'[limits]\nstore = "{url}"\n'
            made.append(stack.enter_context(gateway(place, behind.url, options=words, more=more)))
        yield made


def ask(server: Running) -> int:
    with begin(server, model="hello", stream=False) as line:
        return line.reply().status


def ask_all(servers: Sequence[Running], each: int) -> Counter[int]:
    """How often each status came, of so many requests to each server, many at once."""
    with ThreadPoolExecutor(16) as pool:
        return Counter(pool.map(ask, list(servers) * each))


def said(server: Running, words: str) -> int:
    return sum(words in line for line in list(server.log.all))


def test_two_front_ends_let_in_no_more_than_one_limit(tmp_path: Path, behind: Upstream, redis: RealRedis) -> None:
    with fronts(tmp_path, behind, redis.url) as servers:
        statuses = ask_all(servers, 30)
        assert set(statuses) == {200, 429}
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + len(servers)
        with begin(servers[0], model="hello", stream=False) as line:
            reply = line.reply()
        assert reply.status == 429
        assert reply.error()["code"] == "rate_limit_exceeded"
        assert reply.header("x-ratelimit-limit-requests") == str(PER_MINUTE)
        assert reply.header("x-ratelimit-remaining-requests") == "0"
        assert int(reply.header("retry-after") or 0) > 0
        (counter,) = redis.say("KEYS", "*").split()
        assert re.fullmatch("welldone:limits:key-[0-9a-f]{8}", counter)
        for server in servers:
            until(server, UP, 1)
            assert server.end() == 0
            assert "canary" not in server.log.join()


def test_workers_and_another_server_share_one_limit(tmp_path: Path, behind: Upstream, redis: RealRedis) -> None:
    with fronts(tmp_path, behind, redis.url, "--workers", "2") as servers:
        statuses = ask_all(servers, 30)
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + 2 * len(servers)


def test_without_redis_all_is_answered_with_local_limits_and_when_it_is_back_all_count_together(
    tmp_path: Path, behind: Upstream, redis: RealRedis
) -> None:
    with fronts(tmp_path, behind, redis.url) as servers:
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(ask, server) for server in servers * 30]
            redis.kill()
            assert {one.result() for one in asked} <= {200, 429}
        assert set(ask_all(servers, 10)) <= {200, 429}
        for server in servers:
            server.log.wait(AWAY)
            until(server, UP, 0)
        redis.start()
        for server in servers:
            server.log.wait(BACK)
            until(server, UP, 1)
            assert (said(server, AWAY), said(server, BACK)) == (1, 1)
        statuses = ask_all(servers, 30)
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + len(servers)


def test_a_redis_that_stands_still_holds_nobody_up(tmp_path: Path, behind: Upstream, redis: RealRedis) -> None:
    with fronts(tmp_path, behind, redis.url) as servers:
        redis.hold()
        assert set(ask_all(servers, 10)) <= {200, 429}
        for server in servers:
            server.log.wait(f"{AWAY}.*no answer|{AWAY}.*Timeout")
        redis.go()
        for server in servers:
            until(server, UP, 1)
            assert said(server, AWAY) == 1


def test_a_server_starts_and_answers_where_the_store_never_says_a_word(tmp_path: Path, behind: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with fronts(tmp_path, behind, url, count=1) as (server,):
            statuses = ask_all([server], 2 * PER_MINUTE)
            assert PER_MINUTE <= statuses[200] <= PER_MINUTE + 1
            assert said(server, AWAY) == 1
            assert server.end() == 0


@pytest.mark.parametrize("password", ["", "canary-that-is-wrong"])
def test_a_wrong_password_is_one_warning_and_local_limits(
    tmp_path: Path, behind: Upstream, redis: RealRedis, password: str
) -> None:
    with fronts(tmp_path, behind, redis.url_with(password), count=1) as (server,):
        statuses = ask_all([server], 2 * PER_MINUTE)
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + 1
        until(server, UP, 0)
        assert said(server, AWAY) == 1
        assert server.end() == 0
        assert "canary" not in server.log.join()


def test_a_redis_that_may_not_be_written_to_is_away(tmp_path: Path, behind: Upstream) -> None:
    with real_redis("--replicaof", "127.0.0.1", "1") as replica, fronts(tmp_path, behind, replica.url, count=1) as made:
        (server,) = made
        assert ask_all([server], 2 * PER_MINUTE)[200] >= PER_MINUTE
        server.log.wait(f"{AWAY}.*(read only|MASTERDOWN|LOADING)")
        assert said(server, AWAY) == 1
