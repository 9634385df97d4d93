"""The store of responses: whose they are, how many there are, and who goes first."""

from typing import Any

import msgspec
import pytest

from tests.table import table
from welldone.protocol.json_budget import run_to_completion
from welldone.server.api.response_store import ResponseStore

Body = dict[str, Any]


def response(name: str, *items: Body, text: str = "") -> Body:
    return {"id": name, "output": list(items), "text": text}


def said(name: str) -> Body:
    return {"id": name, "type": "message"}


def filled(*names: str, limit: int = 10, limit_bytes: int = 10**6) -> ResponseStore:
    """A store with these, each of which goes on from the one before."""
    store = ResponseStore(limit=limit, limit_bytes=limit_bytes)
    previous = None
    for name in names:
        store.put("me", response(name, said(f"out_{name}")), [said(f"in_{name}")], previous=previous)
        previous = name
    return store


def names(store: ResponseStore) -> list[str]:
    return [name for name in "abcdefgh" if store.get("me", name) is not None]


def test_a_response_is_given_as_it_was() -> None:
    stored = filled("a").get("me", "a")
    assert stored is not None
    assert stored.as_object() == response("a", said("out_a"))
    assert stored.input_count == 1
    assert run_to_completion(stored.decode_items()) == [said("in_a"), said("out_a")]


def test_what_another_key_has_stored_does_not_exist() -> None:
    store = filled("a")
    assert store.get("you", "a") is None
    assert store.chain("you", "a") is None
    assert store.item("you", "out_a") is None
    assert not store.delete("you", "a")
    assert names(store) == ["a"]


def test_the_oldest_goes_first() -> None:
    assert names(filled("a", "b", "c", limit=2)) == ["b", "c"]


def test_what_was_used_stays_longer() -> None:
    store = filled("a", "b", limit=2)
    store.get("me", "a")
    store.put("me", response("c"), [])
    assert names(store) == ["a", "c"]


def test_all_that_a_response_goes_on_from_stays_with_it() -> None:
    store = ResponseStore(limit=3, limit_bytes=10**6)
    store.put("me", response("a"), [])
    store.put("me", response("b"), [], previous="a")
    store.put("me", response("c"), [])
    assert store.chain("me", "b") is not None
    store.put("me", response("d"), [])
    assert names(store) == ["a", "b", "d"]


def test_bytes_are_bounded_and_given_back() -> None:
    store = ResponseStore(limit=100, limit_bytes=6_000)
    for name in "abcdefgh":
        store.put("me", response(name, text="x" * 2_000), [])
    assert names(store) == ["g", "h"]
    assert 0 < store.size_bytes <= 6_000
    for name in "gh":
        assert store.delete("me", name)
    assert (len(store), store.size_bytes) == (0, 0)


def test_the_ids_of_many_small_items_count_as_well() -> None:
    store = ResponseStore(limit=100, limit_bytes=100_000)
    for name in "abcd":
        store.put("me", response(name), [said(f"{name}{number}") for number in range(200)])
    assert names(store) == ["d"]
    assert store.item("me", "a0") is None


def test_what_is_larger_than_the_store_is_not_kept_and_drives_nobody_out() -> None:
    store = filled("a", limit_bytes=8_192)
    store.put("me", response("b", text="x" * 9_000), [])
    assert names(store) == ["a"]


def test_a_store_that_is_off_keeps_nothing() -> None:
    store = filled("a", limit=0)
    assert (store.is_enabled, len(store), store.size_bytes) == (False, 0, 0)


def test_a_response_that_is_put_again_takes_its_old_place() -> None:
    store = filled("a")
    size = store.size_bytes
    store.put("me", response("a", said("out_a")), [said("in_a")])
    assert (len(store), store.size_bytes) == (1, size)


def test_a_chain_begins_with_its_first_response() -> None:
    chain = filled("a", "b", "c").chain("me", "c")
    assert chain is not None
    assert [one.as_object()["id"] for one in chain] == ["a", "b", "c"]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_chain_of_which_one_is_gone_is_none(gone: str) -> None:
    store = filled("a", "b", "c")
    store.delete("me", gone)
    assert store.chain("me", "c") is None


def test_what_is_still_there_of_a_chain_can_be_had() -> None:
    store = filled("a", "b", "c")
    store.delete("me", "a")
    assert [one.as_object()["id"] for one in store.available_chain("me", "c")] == ["b", "c"]


def test_a_response_that_goes_on_from_itself_ends() -> None:
    store = ResponseStore(limit=10, limit_bytes=10**6)
    store.put("me", response("a"), [], previous="a")
    assert store.chain("me", "a") is None
    assert len(store.available_chain("me", "a")) == 1


def test_an_item_is_found_by_its_id_until_its_response_is_gone() -> None:
    store = filled("a", "b", limit=2)
    assert store.item("me", "out_a") == msgspec.json.encode(said("out_a"))
    assert store.item("me", "in_b") == msgspec.json.encode(said("in_b"))
    store.delete("me", "a")
    assert store.item("me", "out_a") is None


def test_an_item_that_was_said_again_is_found_in_the_later_response() -> None:
    store = filled("a")
    store.put("me", response("b"), [said("out_a")])
    store.delete("me", "a")
    assert store.item("me", "out_a") == msgspec.json.encode(said("out_a"))


@table("output", [None, 5, ["x"], [{"id": 5}], [{}]])
def test_an_output_that_is_odd_is_kept_all_the_same(output: object) -> None:
    store = ResponseStore(limit=10, limit_bytes=10**6)
    store.put("me", {"id": "a", "output": output}, [])
    stored = store.get("me", "a")
    assert stored is not None
    assert stored.as_object() == {"id": "a", "output": output}
    run_to_completion(stored.decode_items())


def test_long_ids_are_counted() -> None:
    sizes = []
    for name in ("x", "x" * 1_000):
        store = ResponseStore(limit=1, limit_bytes=10**6)
        store.put("me", response("a"), [{"type": "message", "id": name}])
        sizes.append(store.size_bytes)
    assert sizes[1] - sizes[0] == 2 * 999  # in the item, and in what finds it


def test_what_a_response_repeats_of_its_request_is_not_what_was_said() -> None:
    store = ResponseStore(limit=2, limit_bytes=10**6)
    store.put("me", response("a", said("out")), [said("in")])
    store.put("me", response("b", said("out")) | {"instructions": "x" * 1_000}, [said("in")])
    plain, long = store.get("me", "a"), store.get("me", "b")
    assert plain is not None
    assert long is not None
    assert (
        plain.items_bytes
        == long.items_bytes
        == len(msgspec.json.encode(said("in"))) + len(msgspec.json.encode(said("out")))
    )


def test_an_item_is_had_as_it_stands_in_its_response() -> None:
    store = ResponseStore(limit=1, limit_bytes=10**6)
    output = [said("out"), 5, {"type": "message"}, {"id": "é", "text": "},{"}]
    whole = {"id": "a", "output": output, "instructions": '"output":[{"id":"out"}]'}
    store.put("me", whole, [said("in"), {"id": "b", "n": [1]}])
    stored = store.get("me", "a")
    assert stored is not None
    assert stored.as_object() == whole
    assert list(stored.as_object()) == ["id", "output", "instructions"]
    items = [said("in"), {"id": "b", "n": [1]}, said("out"), {"type": "message"}, {"id": "é", "text": "},{"}]
    assert run_to_completion(stored.decode_items()) == items
    assert store.item("me", "é") == msgspec.json.encode(items[-1])
