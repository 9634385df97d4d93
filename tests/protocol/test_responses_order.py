"""Repair of the Responses API: missing, repeated and misplaced events, and contradictions between them."""

import pytest

from tests.protocol.responses_streams import (
    CALL,
    CITED,
    HEAD,
    MESSAGE,
    RESPONSE,
    TEXT,
    THOUGHT,
    USAGE,
    Json,
    call_stream,
    frame,
    locators,
    numbered,
    read,
    reasoning_stream,
    repair,
    text_stream,
)
from tests.table import table
from welldone.dialects.responses.repair import ResponsesRepairer

ITEM = "response.output_item"


def changed_item(values: list[Json], item: Json) -> list[Json]:
    """Change the item of output_item.done and of the end."""
    whole = {"response": values[-1]["response"] | {"output": [item]}}
    return [*values[:-2], values[-2] | {"item": item}, values[-1] | whole]


def test_text_only_in_the_final_output_is_streamed() -> None:
    values = text_stream()
    repaired, repairer = repair([values[0], values[8]])
    assert [value["type"].removeprefix("response.") for value in repaired] == [
        *("created", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    assert repaired[-1]["response"] == values[8]["response"]
    assert "resp-final-output" in repairer.repair_log.counts()


def test_text_in_item_added_is_streamed_when_the_item_is_closed() -> None:
    values = text_stream()
    full = MESSAGE | {"content": [TEXT | {"text": "Hello"}]}
    repaired, _ = repair(
        [values[0], values[2] | {"item": full}, values[8] | {"response": RESPONSE | {"status": "completed"}}]
    )
    assert repaired[1]["item"]["content"] == []
    assert [value["delta"] for value in repaired if "delta" in value] == ["Hello"]


def test_text_in_part_added_is_streamed_when_the_part_is_closed() -> None:
    values = text_stream()
    repaired, _ = repair(
        [*values[:3], values[3] | {"part": TEXT | {"text": "Hello"}}, values[8] | {"response": RESPONSE}]
    )
    assert repaired[3]["part"]["text"] == ""
    assert [value["delta"] for value in repaired if "delta" in value] == ["Hello"]


def test_reasoning_without_a_part_gets_one() -> None:
    values = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT | {"content": []}},
        {"type": "reasoning_text.delta", "item_id": "rs_a", "delta": "hm"},
        {"type": "output_item.done", "output_index": 0, "item": THOUGHT | {"status": "completed"}},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "usage": USAGE}},
    )
    repaired, repairer = repair(values)
    assert repairer.repair_log.counts()["resp-reasoning-parts"] == 1
    assert repaired[2]["type"] == "response.content_part.added"
    assert repaired[-1]["response"]["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_a_part_without_a_type_gets_the_type_for_its_item() -> None:
    thought = numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT},
        {"type": "content_part.added", **locators(THOUGHT, 0, content_index=0)},
        {"type": "output_item.added", "output_index": 1, "item": MESSAGE},
        {"type": "content_part.added", **locators(MESSAGE, 1, content_index=0), "part": 5},
    )
    repaired, _ = repair(thought)
    parts = [value["part"]["type"] for value in repaired if value["type"] == "response.content_part.added"]
    assert parts == ["reasoning_text", "output_text"]


def test_items_with_the_same_id_get_unique_ids() -> None:
    second = CALL | {"call_id": "call_b"}
    values = call_stream()
    repaired, _ = repair(
        [
            *values[:5],
            values[1] | {"item": second, "output_index": 1},
            values[2] | {"output_index": 1, "delta": "{}"},
            values[4] | {"item": second | {"arguments": "{}", "status": "completed"}, "output_index": 1},
        ]
    )
    output = repaired[-1]["response"]["output"]
    assert [item["call_id"] for item in output] == ["call_a", "call_b"]
    assert [item["arguments"] for item in output] == ['{"a":1}', "{}"]
    assert len({item["id"] for item in output}) == 2


def test_items_with_the_same_index_are_distinguished_by_type() -> None:
    text = {"type": "output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    repaired, _ = repair(
        numbered(
            {"type": "created", "response": RESPONSE},
            {"type": "reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"},
            *(text, text),
            {"type": "completed", "response": RESPONSE | {"status": "completed"}},
        )
    )
    output = repaired[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[1]["content"][0]["text"] == "HiHi"


@table("position", [2, 3, 6, 7], ids=["item added", "part added", "part done", "item done"])
def test_repeated_events_are_sent_once(position: int) -> None:
    values = text_stream()
    repaired, repairer = repair([*values[: position + 1], values[position], *values[position + 1 :]])
    assert [value["type"] for value in repaired] == [value["type"] for value in values]
    assert repairer.repair_log.counts().keys() <= {
        *("resp-sequence-number", "resp-item-added-first", "resp-part-added-first", "resp-done-events"),
    }


def test_events_after_done_are_dropped() -> None:
    values = reasoning_stream()
    late = [values[position] for position in (5, 6, 7, 10, 15, 16, 17)]
    repaired, repairer = repair([*values[:-1], *late, values[-1]])
    assert [value["type"] for value in repaired] == [value["type"] for value in values]
    assert repairer.repair_log.counts()["resp-done-events"] >= len(late)


@table(
    "value",
    [
        {"type": "response.web_search_call.searching", "item_id": "nobody", "output_index": 9},
        {"type": "response.function_call_arguments.delta", "item_id": "nobody", "delta": ""},
        {"type": "response.output_item.added", "item": {"id": "x"}},
        {"type": "response.output_item.added", "item": None},
        {"type": "response.output_item.done", "item": {"type": ""}, "output_index": 9},
        {"type": "vendor", "x": 1},
        {"type": "", "x": None},
        {"x": None, "type": None},
    ],
    ids=str,
)
def test_unusable_events_are_dropped(value: Json) -> None:
    values = text_stream()
    repaired, repairer = repair([values[0], value, *values[1:]])
    assert repaired == values
    assert repairer.repair_log.entries() != []


@pytest.mark.parametrize("position", [0, 1, 4])
def test_an_unknown_event_is_forwarded_after_response_created(position: int) -> None:
    values = text_stream()
    new = {"type": "response.something.new", "x": [1]}
    repaired, repairer = repair([*values[:position], *[new] * (100 if position == 0 else 1), *values[position:]])
    assert repairer.repair_log.counts()["resp-no-unknown-events"]
    forwarded = [value for value in repaired if value["type"] == new["type"]]
    assert len(forwarded) == (64 if position == 0 else 1)
    assert repaired.index(forwarded[0]) == max(position, 1)
    assert {**forwarded[0], "sequence_number": 0} == {**new, "sequence_number": 0}
    assert [value["sequence_number"] for value in repaired] == list(range(len(repaired)))
    assert [value["type"] for value in repaired if value not in forwarded] == [value["type"] for value in values]


def test_a_second_response_created_is_dropped() -> None:
    values = text_stream()
    repaired, repairer = repair([values[0], *values])
    assert repaired == values
    assert "resp-created-first" in repairer.repair_log.counts()


def test_nothing_follows_the_terminal_event() -> None:
    values = text_stream()
    repairer = ResponsesRepairer(fallback=HEAD)
    sent = b"".join(frame(value) for value in [*values, values[-1]])
    assert (
        read(repairer.feed(sent + b"data: [DONE]\n\n: ping\n\n") + repairer.close() + repairer.keep_alive()) == values
    )
    assert repairer.repair_log.counts() == {"resp-terminal-once": 2}


def test_a_progress_event_after_output_becomes_a_keep_alive() -> None:
    values = text_stream()
    repaired, _ = repair([*values[:5], values[1], *values[5:]])
    assert repaired[5] == {"type": "keepalive", "sequence_number": 5}
    assert len(repaired) == len(values) + 1


@pytest.mark.parametrize("position", [2, 8], ids=["an item", "the end"])
def test_missing_first_events_are_added(position: int) -> None:
    values = text_stream()
    repaired, repairer = repair(values[position:])
    assert repaired[0]["type"] == "response.created"
    assert repaired[-1]["response"]["output"] == values[-1]["response"]["output"]
    assert "resp-created-first" in repairer.repair_log.counts()


def test_items_keep_their_ids_if_the_final_output_has_others() -> None:
    values = call_stream()
    other = values[5]["response"]["output"][0] | {"id": "fc_other", "x_more": 1}
    odd = [None, {"type": "message"}, {"type": ["x"]}]
    values[5]["response"]["output"] = [other, *odd]
    repaired, repairer = repair(values)
    call, message = repaired[-1]["response"]["output"]
    assert call == values[4]["item"] | {"x_more": 1}
    assert message["content"] == []
    assert repairer.repair_log.counts()["resp-final-output"] == 3


def test_items_without_ids_are_matched_by_type_at_the_end() -> None:
    values = text_stream()
    nameless = [{"type": "message", "content": []}, {"type": "message"}]
    repaired, _ = repair([*values[:8], values[8] | {"response": RESPONSE | {"output": nameless}}])
    output = repaired[-1]["response"]["output"]
    assert [len(item["content"]) for item in output] == [1, 0]


def test_parts_keep_their_type_if_the_final_output_has_another() -> None:
    values = text_stream()
    parts = [{"type": "refusal", "refusal": "No"}, 5, {"type": "summary_text", "text": "x"}]
    repaired, _ = repair([*values[:5], values[7] | {"item": MESSAGE | {"content": parts, "status": "completed"}}])
    assert repaired[-1]["response"]["output"][0]["content"] == [TEXT | {"text": "Hello"}]


def test_annotations_are_kept_if_the_server_does_not_repeat_them() -> None:
    values = text_stream()
    note = {
        "type": "response.output_text.annotation.added",
        **locators(MESSAGE, 0, content_index=0),
        "annotation": CITED,
    }
    repaired, _ = repair([*values[:5], note, values[8] | {"response": RESPONSE | {"status": "completed"}}])
    assert repaired[-1]["response"]["output"][0]["content"][0]["annotations"] == [CITED]


def test_logprobs_are_kept_if_the_server_does_not_repeat_them() -> None:
    values = text_stream()
    entry = {"token": "Hello", "logprob": -1.0, "top_logprobs": []}
    repaired, _ = repair([*values[:4], values[4] | {"logprobs": [entry]}, values[8] | {"response": RESPONSE}])
    assert repaired[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


@table(
    "content",
    [
        [{"type": "text", "text": "Hello"}],
        [{"type": "input_text", "text": "Hello"}],
        [{"text": "Hello"}],
        ["Hello"],
        "Hello",
    ],
)
def test_parts_of_another_type_in_the_final_item_are_read(content: object) -> None:
    """Whether deltas came, or the final item alone has the text."""
    item = MESSAGE | {"status": "completed", "content": content}
    assert repair(changed_item(text_stream(), item))[0] == text_stream()
    without_text = [value for value in text_stream() if value["type"].rpartition(".")[0] in ("response", ITEM)]
    assert repair(changed_item(without_text, item))[0][-1]["response"]["output"] == [text_stream()[7]["item"]]


def test_a_part_that_repeats_the_text_may_have_any_type() -> None:
    item = MESSAGE | {"status": "completed", "content": [{"type": "vendor", "text": "ell"}, {"type": "vendor"}]}
    assert repair(changed_item(text_stream(), item))[0] == text_stream()


@table("content", [[{"type": "vendor", "text": "Bye"}], [{"type": "text", "text": ["Bye"]}]])
def test_a_part_of_the_final_item_that_cannot_be_read_is_an_error(content: object) -> None:
    item = MESSAGE | {"status": "completed", "content": content}
    assert repair(changed_item(text_stream(), item))[0][-1]["type"] == "response.failed"


@table(
    ("late", "is_right"),
    [(["Hello"], True), (["Hel", "lo"], True), (["l", "o"], True), (["H"], False), (["l", "l"], False)],
)
def test_late_deltas_repeat_the_end_of_their_text(late: list[str], is_right: bool) -> None:
    *events, item_done, last = text_stream()
    deltas = [events[4] | {"delta": text} for text in late]
    for values in ([*events, *deltas, item_done, last], [*events, item_done, *deltas, last]):
        assert repair(values)[0][-1]["type"] == ("response.completed" if is_right else "response.failed")


def test_late_deltas_are_those_of_one_text() -> None:
    *events, last = text_stream()
    deltas = [
        events[4] | {"delta": text, "content_index": index} for text, index in (("Hel", 0), ("Hel", 1), ("lo", 0))
    ]
    assert repair([*events, *deltas, last])[0][-1]["type"] == "response.failed"
    twice = [events[4] | {"delta": text, "content_index": index} for text, index in (("Hel", 0), ("lo", 1), ("lo", 0))]
    assert repair([*events, *twice, last])[0][-1]["type"] == "response.completed"
