"""Servers with different settings on one Redis: clients try to reach the streams and responses of other keys."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import product
from typing import NamedTuple

from faults.case import Case, CaseContext, Figure, Outcome
from faults.dialects import RESPONSES
from tests.live.redis import WHY_MISSING, RealRedis, real_redis
from tests.support.raw import CHAT, Json, RawConnection, Reply, fetch
from tests.support.server import Running
from tests.support.upstream import Upstream, gateway, reply_by_model
from welldone.mock.script import MockReply, json_reply
from welldone.mock.server import MockHttpRequest

PLAIN = "sk-plain-0123456789"
DERIVED = f"key-{sha256(b'welldone principal: ' + PLAIN.encode()).hexdigest()[:8]}"
"""The principal of the plain key; another server has a named key with this name."""
CHOSEN = "resp_1"
"""The id that the upstream gives to every response."""
SETTINGS = {
    "one": {"team": "sk-team-of-one-0123", "team2": "sk-team2-0123456789"},
    "two": {"team": "sk-team-of-two-0123", DERIVED: "sk-derived-0123456789"},
}
"""Keys by their names, which other servers use for other keys. The first server also has the plain key."""


class Tenant(NamedTuple):
    """A key at the server with it."""

    key: str
    server: Running
    others: tuple[Running, ...]
    """Servers with the same key: they read in Redis what this one has written."""

    def ask(
        self, path: str, body: Json | None = None, *, method: str | None = None, at: Running | None = None
    ) -> Reply:
        """Send a request, again while the store is unavailable."""
        headers = {"Authorization": f"Bearer {self.key}"}
        while (reply := fetch(at or self.server, path, body, method=method, headers=headers)).status == 503:
            assert reply.header("retry-after") == "1"
        return reply


class Property(NamedTuple):
    """What a tenant has: ids and a text that only it may read."""

    owner: Tenant
    secret: str
    response_id: str
    stream_id: str


def choose(request: MockHttpRequest) -> MockReply:
    """Answer with the text of the request. Responses all have the same id."""
    if not request.path.endswith("/responses"):
        return reply_by_model(request)
    text = json.loads(request.body)["input"]
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content}
    return json_reply({"id": CHOSEN, "object": "response", "created_at": 1, "status": "completed", "output": [item]})


@contextmanager
def servers(context: CaseContext, redis: RealRedis) -> Iterator[list[Tenant]]:
    """Run two servers with each settings, and return their keys."""
    tenants: list[Tenant] = []
    with ExitStack() as stack:
        upstream = Upstream(choose)
        upstream.start()
        stack.callback(upstream.end)
        native = (
            f'[upstreams.native]\nurl = "{upstream.url}"\nmodels = ["native"]\nspeaks = ["responses"]\nprobe_s = 0\n'
        )
        for name, keys in SETTINGS.items():
            tables = "".join(f'[keys.{key}]\nkey = "{secret}"\n' for key, secret in keys.items())
            more = f'{native}{tables}[limits]\nstore = "{redis.url}"\n'
            plain = PLAIN if name == "one" else None
            running = []
            for number in range(2):
                folder = context.folder / f"{name}{number}"
                folder.mkdir()
                models = {"models": ["hello", "stalls"]}
                running.append(stack.enter_context(gateway(folder, upstream.url, each=models, more=more, key=plain)))
            secrets = [*keys.values(), *([] if plain is None else [plain])]
            tenants += [Tenant(secret, running[0], tuple(running[1:])) for secret in secrets]
        yield tenants


def acquire(tenant: Tenant, number: int) -> Property:
    """Store responses and start a stream."""
    secret = f"secret-of-tenant-{number}"
    assert secret in str(tenant.ask(RESPONSES, {"model": "native", "input": secret}).ok())
    made = tenant.ask(RESPONSES, {"model": "hello", "input": secret}).ok()
    body = {"model": "stalls", "messages": [{"role": "user", "content": secret}], "stream": True}
    headers = {"Authorization": f"Bearer {tenant.key}", "x-welldone-resume": "1"}
    with RawConnection(tenant.server, CHAT, body, headers=headers) as connection:
        stream_id = connection.wait(rb"(?i)x-welldone-stream-id: (\S+)")[1].decode()
        connection.wait(b"Hello")
    return Property(tenant, secret, str(made["id"]), stream_id)


def names_for(victim: Property, redis_names: list[str]) -> list[str]:
    """Ids that a client of another key could send: the victim's, and parts of the names in Redis."""
    key = victim.owner.key
    ids = (victim.response_id, victim.stream_id, CHOSEN)
    prefixes = ("team%00", f"{key}%00", "..%2f", "team:", "welldone:")
    suffixes = (":message", "%00", "%20", "*", "%0d%0aDEL%20x")
    names = [*ids, *(prefix + one for one in ids for prefix in prefixes)]
    names += [one + suffix for one in ids for suffix in suffixes]
    names += [sha256(f"{owner}\0{one}".encode()).hexdigest() for owner in ("team", key) for one in ids]
    return names + redis_names


def attempts(thief: Tenant, name: str) -> Iterator[Reply]:
    """Everything that a client can do with an id, at each server with its key. Its own response is not deleted."""
    for server in (thief.server, *thief.others):
        for path in (f"{RESPONSES}/{name}", f"{RESPONSES}/{name}/input_items", f"{RESPONSES}/{name}?stream=true"):
            yield thief.ask(path, at=server)
        yield thief.ask(f"/v1/streams/{name}", method="HEAD", at=server)
        if name != CHOSEN:
            for path in (f"{RESPONSES}/{name}", f"/v1/streams/{name}"):
                yield thief.ask(path, method="DELETE", at=server)
        yield thief.ask(f"{RESPONSES}/{name}/cancel", {}, at=server)
        for model in ("hello", "native"):
            yield thief.ask(RESPONSES, {"model": model, "input": "x", "previous_response_id": name}, at=server)


def steal(thief: Tenant, victim: Property, name: str) -> tuple[int, list[str]]:
    """Make all attempts with an id; the number of attempts, and what they achieved."""
    replies = list(attempts(thief, name))
    successes = [reply for reply in replies if victim.secret in str(reply.trace.body)]
    if name != CHOSEN:  # the thief has a response with this id as well
        successes += [reply for reply in replies if reply.status < 400]
    return len(replies), [f"{victim.secret}: {name!r} gave {reply.trace}" for reply in successes]


def losses(possession: Property) -> Iterator[str]:
    """What a tenant no longer has, at the servers that read it in Redis."""
    owner = possession.owner
    for server in owner.others:
        for response_id in (possession.response_id, CHOSEN):
            reply = owner.ask(f"{RESPONSES}/{response_id}/input_items", at=server)
            if possession.secret not in str(reply.trace.body):
                yield f"{possession.secret} lost {response_id}: {reply.trace}"
        if owner.ask(f"/v1/streams/{possession.stream_id}", method="HEAD", at=server).status != 200:
            yield f"{possession.secret} lost its stream"


def read_through(redis: RealRedis, possessions: list[Property], rounds: int) -> tuple[int, list[str]]:
    """Read while Redis stops and goes on: replies to calls that were given up must not reach others."""
    count = 0
    wrong: list[str] = []

    def read(possession: Property) -> Reply:
        headers = {"Authorization": f"Bearer {possession.owner.key}"}
        return fetch(possession.owner.others[0], f"{RESPONSES}/{possession.response_id}/input_items", headers=headers)

    with ThreadPoolExecutor(16) as pool:
        for _ in range(rounds):
            readings = [(possession, pool.submit(read, possession)) for possession in possessions * 8]
            redis.suspend()
            readings += [(possession, pool.submit(read, possession)) for possession in possessions * 8]
            for possession, reading in readings:
                reply = reading.result()
                count += 1
                if reply.status != 503 and possession.secret not in str(reply.trace.body):
                    wrong.append(f"{possession.secret} got {reply.trace}")
            redis.resume()
            for possession in possessions:
                possession.owner.ask(f"{RESPONSES}/{possession.response_id}", at=possession.owner.others[0])
    return count, wrong


def tenants(context: CaseContext) -> Outcome:
    """Let each key try to reach what the others have."""
    if WHY_MISSING:
        return Outcome(not_run=WHY_MISSING)
    with real_redis() as redis, servers(context, redis) as everybody:
        possessions = [acquire(tenant, number) for number, tenant in enumerate(everybody)]
        redis_names = redis.command("KEYS", "*").split()
        thefts = [
            (thief, victim, name)
            for victim, thief in product(possessions, everybody)
            if thief is not victim.owner
            for name in names_for(victim, redis_names)
        ][:: context.times(6, 97)]
        with ThreadPoolExecutor(12) as pool:
            results = list(pool.map(lambda theft: steal(*theft), thefts))
        tries, problems = sum(count for count, _ in results), [problem for _, found in results for problem in found]
        lost = [loss for possession in possessions for loss in losses(possession)]
        reads, wrong = read_through(redis, possessions, context.times(20, 1))
    return Outcome(
        count=tries + reads,
        happened=(
            f"{len(everybody)} keys, some with the same name, made {tries:,} attempts to reach what others have; "
            f"{reads:,} reads while Redis stopped and went on got their own response"
        ),
        figures=(
            Figure("attempts that read or changed another key's", len(problems), most=0),
            Figure("responses and streams lost", len(lost), most=0),
            Figure("reads with another reply", len(wrong), most=0),
        ),
        problems=(*problems, *lost, *wrong),
    )


CASES = (
    Case(
        "tenants",
        "keys of servers with different settings on one Redis try to reach the responses and streams of others, by ids "
        "that they know, that the upstream chooses, and that imitate names in Redis; and Redis stops during reads",
        tenants,
    ),
)
