"""Owners of upstream state: which API key received the ids of responses, items and conversations.

An upstream that stores responses has one client, the gateway, and would let any key continue any response. So an id in
a request is forwarded only if the same key received it. With one API key, or none, all clients are equal, and unknown
ids are forwarded: they may be from before a restart, or from another gateway.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from welldone.protocol.events import Json
from welldone.server.observe.workers import WorkerQuery, WorkerSync

MAX_IDS = 65_536
"""Stored ids, about 15 MB. The oldest are dropped, and rejected from then on."""
_ID_LIMIT = 256
"""Characters of an id; OpenAI's have up to 70. Longer ones are not stored."""
_ITEMS_LIMIT = 1_024
"""Stored items of one response."""
_AMBIGUOUS = ""
"""Owner of an id that two keys received: neither may use it, since the upstream cannot tell them apart."""
_OWNER_TOPIC = "owner"


class UpstreamIdOwners:
    """The owners of ids. `is_strict`: there are several keys, and unknown ids are rejected.

    With several workers each stores the ids that it sent, and queries the others for unknown ones.
    """

    def __init__(self, worker_sync: WorkerSync, *, is_strict: bool, limit: int = MAX_IDS) -> None:
        self.is_strict = is_strict
        self._worker_sync = worker_sync
        self._limit = limit
        self._owners: OrderedDict[str, str] = OrderedDict()
        worker_sync.register(_OWNER_TOPIC, self._answer_query)

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, principal: str, response: Json) -> None:
        """Store the ids of a response that a key receives."""
        if not self.is_strict:
            return
        for state_id in _state_ids(response):
            if self._owners.setdefault(state_id, principal) != principal:
                self._owners[state_id] = _AMBIGUOUS
            self._owners.move_to_end(state_id)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    async def not_owned(self, principal: str, ids: Iterable[str]) -> set[str]:
        """Return the ids that the key did not receive, or that are no longer stored."""
        if not self.is_strict:
            return set()
        unowned = {state_id for state_id in ids if self._owners.get(state_id) != principal}
        unknown = [state_id for state_id in unowned if state_id not in self._owners]
        if unknown:
            for reply in await self._worker_sync.gather(_OWNER_TOPIC, {"principal": principal, "ids": unknown}):
                unowned.difference_update(reply.decode().split("\n"))
        return unowned

    async def _answer_query(self, query: WorkerQuery) -> bytes:
        principal = query["principal"]
        return "\n".join(state_id for state_id in query["ids"] if self._owners.get(state_id) == principal).encode()


def state_references(body: Json) -> Iterator[tuple[str, str]]:
    """Return the parameters and ids that refer to upstream state, except `previous_response_id`."""
    conversation = body.get("conversation")
    conversation_id = conversation.get("id") if isinstance(conversation, dict) else conversation
    if isinstance(conversation_id, str):
        yield "conversation", conversation_id
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            continue
        kind = item.get("type")
        if kind == "item_reference" or (kind is None and "role" not in item):
            yield f"input[{index}]", item["id"]


def _state_ids(response: Json) -> Iterator[str]:
    conversation, output = response.get("conversation"), response.get("output")
    items = output[:_ITEMS_LIMIT] if isinstance(output, list) else []
    for value in (response, conversation, *items):
        state_id = value.get("id") if isinstance(value, dict) else None
        if isinstance(state_id, str) and 0 < len(state_id) <= _ID_LIMIT and "\n" not in state_id:
            yield state_id
