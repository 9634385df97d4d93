"""The response store: ownership, limits and eviction."""

from typing import Any

import msgspec
import pytest

from tests.table import table
from welldone.core.json_budget import run_to_completion
from welldone.server.api.response_store import ResponseStore

Body = dict[str, Any]


def response(name: str, *items: Body, text: str = "") -> Body:
    return {"id": name, "output": list(items), "text": text}


def make_item(name: str) -> Body:
    return {"id": name, "type": "message"}


def filled(*names: str, limit: int = 10, limit_bytes: int = 10**6) -> ResponseStore:
    """Return a store with a chain of responses."""
    store = ResponseStore(limit=limit, limit_bytes=limit_bytes)
    previous = None
    for name in names:
        store.put("me", response(name, make_item(f"out_{name}")), [make_item(f"in_{name}")], previous=previous)
        previous = name
    return store


def names(store: ResponseStore) -> list[str]:
    return [name for name in "abcdefgh" if store.get("me", name) is not None]


def test_a_response_is_returned_unchanged() -> None:
    stored = filled("a").get("me", "a")
    assert stored is not None
    assert msgspec.json.decode(stored.response) == response("a", make_item("out_a"))
    assert stored.input_count == 1
    assert run_to_completion(stored.decode_items()) == [make_item("in_a"), make_item("out_a")]


def test_responses_of_another_key_do_not_exist() -> None:
    store = filled("a")
    assert store.get("you", "a") is None
    assert store.chain("you", "a") is None
    assert store.item("you", "out_a") is None
    assert not store.delete("you", "a")
    assert names(store) == ["a"]


def test_the_oldest_response_is_evicted_first() -> None:
    assert names(filled("a", "b", "c", limit=2)) == ["b", "c"]


def test_a_used_response_is_evicted_later() -> None:
    store = filled("a", "b", limit=2)
    store.get("me", "a")
    store.put("me", response("c"), [])
    assert names(store) == ["a", "c"]


def test_a_chain_is_kept_as_a_whole() -> None:
    store = ResponseStore(limit=3, limit_bytes=10**6)
    store.put("me", response("a"), [])
    store.put("me", response("b"), [], previous="a")
    store.put("me", response("c"), [])
    assert store.chain("me", "b") is not None
    store.put("me", response("d"), [])
    assert names(store) == ["a", "b", "d"]


def test_bytes_are_limited_and_released() -> None:
    store = ResponseStore(limit=100, limit_bytes=6_000)
    for name in "abcdefgh":
        store.put("me", response(name, text="x" * 2_000), [])
    assert names(store) == ["g", "h"]
    assert 0 < store.size_bytes <= 6_000
    for name in "gh":
        assert store.delete("me", name)
    assert (len(store), store.size_bytes) == (0, 0)


def test_item_ids_count_towards_the_size() -> None:
    store = ResponseStore(limit=100, limit_bytes=100_000)
    for name in "abcd":
        store.put("me", response(name), [make_item(f"{name}{number}") for number in range(200)])
    assert names(store) == ["d"]
    assert store.item("me", "a0") is None


def test_a_response_larger_than_the_store_is_not_stored_and_evicts_nothing() -> None:
    store = filled("a", limit_bytes=8_192)
    store.put("me", response("b", text="x" * 9_000), [])
    assert names(store) == ["a"]


def test_a_disabled_store_stores_nothing() -> None:
    store = filled("a", limit=0)
    assert (store.is_enabled, len(store), store.size_bytes) == (False, 0, 0)


def test_a_response_replaces_an_earlier_one_with_its_id() -> None:
    store = filled("a")
    size = store.size_bytes
    store.put("me", response("a", make_item("out_a")), [make_item("in_a")])
    assert (len(store), store.size_bytes) == (1, size)


def test_a_chain_starts_with_its_oldest_response() -> None:
    chain = filled("a", "b", "c").chain("me", "c")
    assert chain is not None
    assert [msgspec.json.decode(one.response)["id"] for one in chain] == ["a", "b", "c"]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_an_incomplete_chain_is_none(gone: str) -> None:
    store = filled("a", "b", "c")
    store.delete("me", gone)
    assert store.chain("me", "c") is None


def test_the_rest_of_an_incomplete_chain_is_available() -> None:
    store = filled("a", "b", "c")
    store.delete("me", "a")
    assert [msgspec.json.decode(one.response)["id"] for one in store.available_chain("me", "c")] == ["b", "c"]


def test_a_cyclic_chain_ends() -> None:
    store = ResponseStore(limit=10, limit_bytes=10**6)
    store.put("me", response("a"), [], previous="a")
    assert store.chain("me", "a") is None
    assert len(store.available_chain("me", "a")) == 1


def test_an_item_is_found_until_its_response_is_evicted() -> None:
    store = filled("a", "b", limit=2)
    assert store.item("me", "out_a") == msgspec.json.encode(make_item("out_a"))
    assert store.item("me", "in_b") == msgspec.json.encode(make_item("in_b"))
    store.delete("me", "a")
    assert store.item("me", "out_a") is None


def test_a_repeated_item_is_found_in_the_later_response() -> None:
    store = filled("a")
    store.put("me", response("b"), [make_item("out_a")])
    store.delete("me", "a")
    assert store.item("me", "out_a") == msgspec.json.encode(make_item("out_a"))


@table("output", [None, 5, ["x"], [{"id": 5}], [{}]])
def test_an_unusual_output_is_stored_too(output: object) -> None:
    store = ResponseStore(limit=10, limit_bytes=10**6)
    store.put("me", {"id": "a", "output": output}, [])
    stored = store.get("me", "a")
    assert stored is not None
    assert msgspec.json.decode(stored.response) == {"id": "a", "output": output}
    run_to_completion(stored.decode_items())


def test_long_ids_are_counted() -> None:
    sizes = []
    for name in ("x", "x" * 1_000):
        store = ResponseStore(limit=1, limit_bytes=10**6)
        store.put("me", response("a"), [{"type": "message", "id": name}])
        sizes.append(store.size_bytes)
    assert sizes[1] - sizes[0] == 2 * 999  # in the item and in the index


def test_echoed_fields_are_not_items() -> None:
    store = ResponseStore(limit=2, limit_bytes=10**6)
    store.put("me", response("a", make_item("out")), [make_item("in")])
    store.put("me", response("b", make_item("out")) | {"instructions": "x" * 1_000}, [make_item("in")])
    plain, long = store.get("me", "a"), store.get("me", "b")
    assert plain is not None
    assert long is not None
    assert (
        plain.items_bytes
        == long.items_bytes
        == len(msgspec.json.encode(make_item("in"))) + len(msgspec.json.encode(make_item("out")))
    )


def test_an_item_is_returned_as_in_its_response() -> None:
    store = ResponseStore(limit=1, limit_bytes=10**6)
    output = [make_item("out"), 5, {"type": "message"}, {"id": "é", "text": "},{"}]
    whole = {"id": "a", "output": output, "instructions": '"output":[{"id":"out"}]'}
    store.put("me", whole, [make_item("in"), {"id": "b", "n": [1]}])
    stored = store.get("me", "a")
    assert stored is not None
    assert msgspec.json.decode(stored.response) == whole
    assert list(msgspec.json.decode(stored.response)) == ["id", "output", "instructions"]
    items = [make_item("in"), {"id": "b", "n": [1]}, make_item("out"), {"type": "message"}, {"id": "é", "text": "},{"}]
    assert run_to_completion(stored.decode_items()) == items
    assert store.item("me", "é") == msgspec.json.encode(items[-1])
