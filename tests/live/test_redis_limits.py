"""Rate limits that servers share in Redis, also when Redis is down, hangs or rejects commands."""

import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.live.redis import NEEDS_REDIS, RealRedis, real_redis
from tests.support.faults import start_chat, wait_for_metric
from tests.support.server import Running
from tests.support.upstream import Upstream, gateway

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]
PER_MINUTE = 6
"""One request is refilled every ten seconds, so that a slow test run gains few."""
UP = "welldone_limits_store_up"
DOWN, RECOVERED = "store of shared limits and keys is unavailable", "store of shared limits and keys is available again"


@contextmanager
def limited_servers(
    folder: Path, backend: Upstream, url: str, *options: str, count: int = 2
) -> Iterator[list[Running]]:
    """Run gateways that share one rate limit."""
    arguments = ["--requests-per-minute", str(PER_MINUTE), *options]
    with ExitStack() as stack:
        servers = []
        for number in range(count):
            own_folder = folder / f"server-{number}"
            own_folder.mkdir()
            more = f'[limits]\nstore = "{url}"\n'
            servers.append(stack.enter_context(gateway(own_folder, backend.url, options=arguments, more=more)))
        yield servers


def chat_status(server: Running) -> int:
    with start_chat(server, model="hello", stream=False) as connection:
        return connection.reply().status


def send_all(servers: Sequence[Running], each: int) -> Counter[int]:
    """Send `each` requests to each server concurrently and count the statuses."""
    with ThreadPoolExecutor(16) as pool:
        return Counter(pool.map(chat_status, list(servers) * each))


def log_count(server: Running, text: str) -> int:
    return sum(text in line for line in list(server.log.all))


def test_two_servers_together_enforce_one_limit(tmp_path: Path, backend: Upstream, redis: RealRedis) -> None:
    with limited_servers(tmp_path, backend, redis.url) as servers:
        statuses = send_all(servers, 30)
        assert set(statuses) == {200, 429}
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + len(servers)
        with start_chat(servers[0], model="hello", stream=False) as connection:
            reply = connection.reply()
        assert reply.status == 429
        assert reply.error()["code"] == "rate_limit_exceeded"
        assert reply.header("x-ratelimit-limit-requests") == str(PER_MINUTE)
        assert reply.header("x-ratelimit-remaining-requests") == "0"
        assert int(reply.header("retry-after") or 0) > 0
        (counter,) = redis.command("KEYS", "*").split()
        assert re.fullmatch("welldone:limits:key-[0-9a-f]{8}", counter)
        for server in servers:
            wait_for_metric(server, UP, 1)
            assert server.end() == 0
            assert "canary" not in server.log.join()


def test_workers_and_servers_share_one_limit(tmp_path: Path, backend: Upstream, redis: RealRedis) -> None:
    with limited_servers(tmp_path, backend, redis.url, "--workers", "2") as servers:
        statuses = send_all(servers, 30)
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + 2 * len(servers)


def test_limits_are_local_while_redis_is_down_and_shared_when_it_returns(
    tmp_path: Path, backend: Upstream, redis: RealRedis
) -> None:
    with limited_servers(tmp_path, backend, redis.url) as servers:
        with ThreadPoolExecutor(16) as pool:
            futures = [pool.submit(chat_status, server) for server in servers * 30]
            redis.kill()
            assert {future.result() for future in futures} <= {200, 429}
        assert set(send_all(servers, 10)) <= {200, 429}
        for server in servers:
            server.log.wait(DOWN)
            wait_for_metric(server, UP, 0)
        redis.start()
        for server in servers:
            server.log.wait(RECOVERED)
            wait_for_metric(server, UP, 1)
            assert (log_count(server, DOWN), log_count(server, RECOVERED)) == (1, 1)
        statuses = send_all(servers, 30)
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + len(servers)


def test_a_hung_redis_does_not_delay_requests(tmp_path: Path, backend: Upstream, redis: RealRedis) -> None:
    with limited_servers(tmp_path, backend, redis.url) as servers:
        redis.suspend()
        assert set(send_all(servers, 10)) <= {200, 429}
        for server in servers:
            server.log.wait(f"{DOWN}.*no answer|{DOWN}.*Timeout")
        redis.resume()
        for server in servers:
            wait_for_metric(server, UP, 1)
            assert log_count(server, DOWN) == 1


def test_a_server_starts_and_answers_when_the_store_never_responds(tmp_path: Path, backend: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with limited_servers(tmp_path, backend, url, count=1) as (server,):
            statuses = send_all([server], 2 * PER_MINUTE)
            assert PER_MINUTE <= statuses[200] <= PER_MINUTE + 1
            assert log_count(server, DOWN) == 1
            assert server.end() == 0


@pytest.mark.parametrize("password", ["", "canary-that-is-wrong"])
def test_a_wrong_password_gives_one_warning_and_local_limits(
    tmp_path: Path, backend: Upstream, redis: RealRedis, password: str
) -> None:
    with limited_servers(tmp_path, backend, redis.url_with(password), count=1) as (server,):
        statuses = send_all([server], 2 * PER_MINUTE)
        assert PER_MINUTE <= statuses[200] <= PER_MINUTE + 1
        wait_for_metric(server, UP, 0)
        assert log_count(server, DOWN) == 1
        assert server.end() == 0
        assert "canary" not in server.log.join()


def test_a_read_only_redis_counts_as_unavailable(tmp_path: Path, backend: Upstream) -> None:
    with (
        real_redis("--replicaof", "127.0.0.1", "1") as replica,
        limited_servers(tmp_path, backend, replica.url, count=1) as servers,
    ):
        (server,) = servers
        assert send_all([server], 2 * PER_MINUTE)[200] >= PER_MINUTE
        server.log.wait(f"{DOWN}.*(read only|MASTERDOWN|LOADING)")
        assert log_count(server, DOWN) == 1
