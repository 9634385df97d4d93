"""Rules about /v1/responses (`resp-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

CREATED_FIRST = Rule(
    id="resp-created-first",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="The first event is response.created, and it comes once.",
    affects=(
        "openai-python .stream(): RuntimeError 'Expected to have received `response.created`'",
        "openai-node .stream(): throws, as it has no response yet",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it before the first event, from the response in that event",
)
CREATED_FULL = Rule(
    id="resp-created-full",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="A Response is always whole, in response.created too: id, object, created_at, model, status and output.",
    affects=(
        "openai-node .stream(): 'rsp.output is not iterable' where response.created has no output",
        "AI SDK openai: rejects response.created without id, created_at or model",
    ),
    repairability=Repairability.LOSSLESS,
    repair="fill in what is missing, from the request where it is known",
)
OBJECT_SCHEMA = Rule(
    id="resp-object-schema",
    severity=Severity.TOLERATED,
    endpoints=("responses",),
    summary=(
        "A Response, its items and their parts have every required member of the published schema, each of its type."
    ),
    affects=(
        "clients generated from the Open Responses schema: reject the object, as its compliance suite does",
        "openai-python, openai-node: an attribute is None or undefined that their types promise",
    ),
    repairability=Repairability.LOSSLESS,
    repair="fill in what is missing: from the request where it is known, else with the default of the API",
)
EVENT_NAME = Rule(
    id="resp-event-name",
    severity=Severity.TOLERATED,
    endpoints=("responses",),
    summary="Each event has an event: line that repeats its type.",
    affects=("EventSource listeners: wait for events by name, and never hear one without it",),
    repairability=Repairability.LOSSLESS,
    repair="write the line",
)
SEQUENCE_NUMBER = Rule(
    id="resp-sequence-number",
    severity=Severity.TOLERATED,
    endpoints=("responses",),
    summary="Every event has a sequence_number, from 0, growing by one.",
    affects=(
        "AI SDK openai: rejects error and response.failed without it, so the reason is lost",
        "openai-python, openai-node: cannot take up a stream again with starting_after",
    ),
    repairability=Repairability.LOSSLESS,
    repair="number the events",
)
OUTPUT_INDEX = Rule(
    id="resp-output-index",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="Events about an item have its output_index, counted from 0 without gaps.",
    affects=(
        "openai-node .stream(): throws, as it finds the item by its index",
        "AI SDK openai: rejects the event, so its text is lost",
        "OpenClaw: rejected streams without it (lemonade-sdk/lemonade#3607)",
    ),
    repairability=Repairability.LOSSLESS,
    repair="count the items",
)
CONTENT_INDEX = Rule(
    id="resp-content-index",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="Events about a part have its content_index (summary_index in summaries), counted from 0 without gaps.",
    affects=(
        "openai-python .stream(): IndexError or TypeError, as it finds the part by its index",
        "openai-node .stream(): 'missing content at index'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="count the parts",
)
ITEM_ID_STABLE = Rule(
    id="resp-item-id-stable",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="Every item has an id of its own, and it is the same in all events about it.",
    affects=(
        "openai-python .stream(): RuntimeError 'Completed output item identity changed.'",
        "AI SDK openai: rejects a delta without item_id, and finds no part under an id that changed",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write the id that output_item.added gave",
)
ITEM_ADDED_FIRST = Rule(
    id="resp-item-added-first",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="response.output_item.added comes before any other event about the item.",
    affects=(
        "openai-python .stream(): IndexError, as there is no such item",
        "openai-node .stream(): 'missing output at index 0'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it before the first event about the item",
)
PART_ADDED_FIRST = Rule(
    id="resp-part-added-first",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="response.content_part.added comes before any other event about a text or a refusal.",
    affects=(
        "openai-python .stream(): IndexError, as there is no such part",
        "openai-node .stream(): 'missing content at index 0'",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it before the first event about the part",
)
DELTAS = Rule(
    id="resp-deltas",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="Text comes in deltas, not only in the events that close it.",
    affects=(
        "AI SDK openai: shows deltas only, so the text is lost",
        "raw streams of openai-python and openai-node: their callers print deltas, so nothing is shown",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write one delta with the whole value before the event that closes it",
)
DONE_EVENTS = Rule(
    id="resp-done-events",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="All that was opened is closed, with its full value: the text, then its part, then its item.",
    affects=(
        "Codex: takes messages and calls only from response.output_item.done, so both are lost",
        "AI SDK openai: a call without response.output_item.done is lost",
    ),
    repairability=Repairability.LOSSLESS,
    repair="build the missing events from the deltas",
)
TERMINAL_ONCE = Rule(
    id="resp-terminal-once",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary=(
        "One of response.completed, response.incomplete and response.failed ends the stream, as the status of its "
        "response says; nothing follows it, not even [DONE]."
    ),
    affects=(
        "Codex: 'stream closed before response.completed'",
        'openai-python .stream(): RuntimeError "Didn\'t receive a `response.completed` event."',
        "AI SDK openai: ends with the finish reason 'other' and without usage",
        "copilot-api: [DONE] made JSON.parse throw (caozhiyuan/copilot-api#338)",
    ),
    repairability=Repairability.PARTIAL,
    repair="write response.failed; response.completed where [DONE] came and all items are done. Drop what follows it",
)
INCOMPLETE = Rule(
    id="resp-incomplete",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="An answer that was cut ends with response.incomplete, and incomplete_details.reason says why.",
    affects=("openai-python, openai-node, AI SDK openai, Codex: take the cut answer for a whole one",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; from the stream alone it cannot be known that an answer was cut",
    detection=Detection.PROBE,
)
FINAL_OUTPUT = Rule(
    id="resp-final-output",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="The output of the last event repeats the items of the stream, with their ids, texts and calls.",
    affects=(
        "openai-python .stream(), openai-node .stream(): return the final response, so an empty output is no answer",
        "Codex: pairs calls and results by call_id",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write the items that were streamed",
)
USAGE = Rule(
    id="resp-usage",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="The response at the end has usage: input_tokens, output_tokens, total_tokens and both details objects.",
    affects=(
        "Codex: fails the turn where cached_tokens or reasoning_tokens is missing in its details",
        "AI SDK openai: rejects response.completed if usage has the names of chat",
    ),
    repairability=Repairability.PARTIAL,
    repair="rename the names of chat and write 0 for missing details; unknown counts stay null",
)
RESPONSE_ID = Rule(
    id="resp-response-id",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="response.id is the same in all events.",
    affects=("openai-python .stream(): RuntimeError 'Lifecycle response identity changed.'",),
    repairability=Repairability.LOSSLESS,
    repair="write the first one",
)
FUNCTION_IDS = Rule(
    id="resp-function-ids",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="A function_call item has id, call_id, name and arguments; id, call_id and name never change.",
    affects=(
        "AI SDK openai: rejects the item without id",
        "openai-python .stream(): RuntimeError if call_id differs at the end",
        "Codex: sends the result under another call_id than the call had",
    ),
    repairability=Repairability.LOSSLESS,
    repair="make an id of the form fc_…; keep the first call_id and name",
)
ARGS_DONE = Rule(
    id="resp-args-done",
    severity=Severity.STYLE,
    endpoints=("responses",),
    summary="response.function_call_arguments.done closes the arguments of a call and has them in full.",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="build it from the deltas",
)
ITEM_STATUS = Rule(
    id="resp-item-status",
    severity=Severity.TOLERATED,
    endpoints=("responses",),
    summary="An item has status in_progress when it is added, and completed or incomplete when it is done.",
    affects=("AI SDK openai: rejects a function_call that is done and has no status",),
    repairability=Repairability.LOSSLESS,
    repair="fill it in",
)
NO_UNKNOWN_EVENTS = Rule(
    id="resp-no-unknown-events",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="Only event types of the specification are sent, each in one JSON object with its type.",
    affects=("openai-node .stream(): 'Unhandled response stream event'",),
    repairability=Repairability.REPORT_ONLY,
    repair="report and forward an event whose type begins with response., which a newer API may have; drop others",
)
KEEPALIVE = Rule(
    id="resp-keepalive",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary=(
        "A keep-alive is a comment, a response.in_progress again, or {type:'keepalive'}; never an event without data."
    ),
    affects=(
        "openai-python, openai-node, and the .stream() of both: JSON error at an event without data",
        "Codex: counts events, so comments alone do not keep it waiting",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write a comment, or a keepalive event once response.created was sent",
)
ERROR = Rule(
    id="resp-error",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary=(
        "A failure is response.failed with response.error {code, message}; an error event with the same may precede it."
    ),
    affects=(
        "Codex: knows only response.failed, and otherwise waits and tries again",
        "AI SDK openai: rejects an error event that has no code, message, param and sequence_number",
        "openai-python, openai-node: throw at {error:…}, but their callers wait for response.failed",
    ),
    repairability=Repairability.LOSSLESS,
    repair="send it as response.failed",
)
LOGPROBS_ARRAY = Rule(
    id="resp-logprobs-array",
    severity=Severity.STYLE,
    endpoints=("responses",),
    summary="response.output_text.delta and response.output_text.done have logprobs, perhaps [].",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="write []",
)
REASONING_PARTS = Rule(
    id="resp-reasoning-parts",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="Reasoning text has a content part, and a summary has a summary part, which is added before it.",
    affects=(
        "openai-node .stream(): 'missing content at index 0'",
        "AI SDK openai: loses the summary, or fails, without reasoning_summary_part.added",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write the missing event",
)
DELTA_EQUALS_DONE = Rule(
    id="resp-delta-equals-done",
    severity=Severity.BREAKS,
    endpoints=("responses",),
    summary="The joined deltas equal the value of the event that closes them.",
    affects=("openai-python .stream(), openai-node .stream(): show one text while it comes and return another",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; which of the two is right cannot be known",
)
