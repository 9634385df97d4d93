"""Which key received which ids of state that an upstream keeps: responses, their items, conversations.

An upstream that stores responses knows one client, the gateway, and would let any key continue any response. So an id
in a request goes to the upstream only where the same key received it. Where there is one key, or none, all clients are
one to the gateway as well, and unknown ids pass: they may have been made before a restart, or elsewhere.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from welldone.protocol.events import Json
from welldone.server.observe.workers import WorkerQuery, WorkerSync

MAX_IDS = 65_536
"""Ids that are remembered, some 15 MB; the oldest are forgotten, and refused from then on."""
_ID_LIMIT = 256
"""Characters of an id; OpenAI's have up to 70. A longer one is not remembered."""
_ITEMS_LIMIT = 1_024
"""Items of one response that are remembered."""
_AMBIGUOUS = ""
"""The owner of an id that two keys received: the upstream cannot tell them apart, and neither may use it."""
_OWNER_TOPIC = "owner"


class UpstreamIdOwners:
    """The owners of ids. `is_strict`: there are several keys, and an unknown id is nobody's.

    With several processes each remembers what it sent, and asks the others for what it does not know.
    """

    def __init__(self, *, is_strict: bool, worker_sync: WorkerSync | None = None, limit: int = MAX_IDS) -> None:
        self._is_strict = is_strict
        self._worker_sync = worker_sync
        self._limit = limit
        self._owners: OrderedDict[str, str] = OrderedDict()
        if worker_sync is not None:
            worker_sync.register(_OWNER_TOPIC, self._answer_query)

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, principal: str, response: Json) -> None:
        """A key received this response."""
        if not self._is_strict:
            return
        for name in _state_ids(response):
            if self._owners.setdefault(name, principal) != principal:
                self._owners[name] = _AMBIGUOUS
            self._owners.move_to_end(name)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    async def not_owned(self, principal: str, ids: Iterable[str]) -> set[str]:
        """Those of these ids that the key did not receive, or that are forgotten."""
        if not self._is_strict:
            return set()
        unowned = {name for name in ids if self._owners.get(name) != principal}
        elsewhere = [name for name in unowned if name not in self._owners]
        if elsewhere and self._worker_sync is not None:
            for answer in await self._worker_sync.gather(_OWNER_TOPIC, {"principal": principal, "ids": elsewhere}):
                unowned.difference_update(answer.decode().split("\n"))
        return unowned

    async def _answer_query(self, query: WorkerQuery) -> bytes:
        principal = query["principal"]
        return "\n".join(name for name in query["ids"] if self._owners.get(name) == principal).encode()


def state_references(body: Json) -> Iterator[tuple[str, str]]:
    """The ids in a request that name an upstream's state besides `previous_response_id`, each after its field."""
    conversation = body.get("conversation")
    name = conversation.get("id") if isinstance(conversation, dict) else conversation
    if isinstance(name, str):
        yield "conversation", name
    items = body.get("input")
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and _is_reference(item) and isinstance(item.get("id"), str):
            yield f"input[{place}]", item["id"]


def _is_reference(item: Json) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)


def _state_ids(response: Json) -> Iterator[str]:
    conversation, output = response.get("conversation"), response.get("output")
    items = output[:_ITEMS_LIMIT] if isinstance(output, list) else []
    for value in (response, conversation, *items):
        name = value.get("id") if isinstance(value, dict) else None
        if isinstance(name, str) and 0 < len(name) <= _ID_LIMIT and "\n" not in name:
            yield name
