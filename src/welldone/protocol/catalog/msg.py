"""Rules about /v1/messages (Anthropic) (`msg-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

EVENT_NAME = Rule(
    id="msg-event-name",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Each event has its type twice: in its event: line, and as type in its JSON.",
    affects=(
        "anthropic-sdk-python, anthropic-sdk-typescript: skip an event without a name, so that its content is lost",
        "anthropic-sdk-python .stream(), anthropic-sdk-typescript .stream(): fail where the JSON has no type",
        "AI SDK anthropic: fails the request where the JSON has no type",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write both, from the one that is there",
)
START_FIRST = Rule(
    id="msg-start-first",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="The first event is message_start; only pings come before it.",
    affects=(
        "anthropic-sdk-python .stream(): AssertionError where it should give the message",
        "anthropic-sdk-typescript .stream(): 'request ended without sending any chunks'",
        "AI SDK anthropic: reports 0 input tokens",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it before the first event",
)
START_FULL = Rule(
    id="msg-start-full",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary=(
        "The message of message_start has id, type, role, model, content [], and stop_reason and stop_sequence null."
    ),
    affects=(
        "anthropic-sdk-python .stream(): AttributeError where content is missing or null",
        "anthropic-sdk-typescript .stream(): TypeError where content is missing or null",
        "AI SDK anthropic: fails the request where message is missing, id is a number or content has text",
    ),
    repairability=Repairability.LOSSLESS,
    repair="fill in what is missing",
)
START_ONCE = Rule(
    id="msg-start-once",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="message_start comes once.",
    affects=(
        "anthropic-sdk-typescript .stream(): 'Unexpected event order, got message_start before receiving ...'",
        "AI SDK anthropic: fails the answer at a second one with another id",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop the later ones",
)
BLOCK_INDEX = Rule(
    id="msg-block-index",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Blocks are numbered from 0 without gaps, and every event of a block has its number as index.",
    affects=(
        "anthropic-sdk-python .stream(): IndexError or TypeError, as it finds the block by its index",
        "anthropic-sdk-typescript .stream(): the message lacks the text",
        "AI SDK anthropic: rejects an event whose index is missing or a string, so its text is lost",
    ),
    repairability=Repairability.LOSSLESS,
    repair="number the blocks",
)
BLOCK_START_FIRST = Rule(
    id="msg-block-start-first",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="A block begins with content_block_start; no delta or stop comes for a block that is not open.",
    affects=(
        "anthropic-sdk-python .stream(): IndexError, list index out of range",
        "anthropic-sdk-typescript .stream(): TypeError, or a message that lacks the text",
        "AI SDK anthropic: error 'text part 0 not found'; a tool call is lost, or cut where its block was stopped",
    ),
    repairability=Repairability.PARTIAL,
    repair=(
        "begin a block of the delta's kind; a stop of no block is dropped; a tool's input without its name is an error"
    ),
)
BLOCK_START_FULL = Rule(
    id="msg-block-start-full",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="content_block has its type and that type's members: text; thinking and signature; name and input.",
    affects=(
        "anthropic-sdk-python .stream(): TypeError where text or thinking is missing or null",
        "anthropic-sdk-typescript .stream(): thoughts begin with 'undefined'",
        "AI SDK anthropic: rejects the start, so a tool call is lost",
    ),
    repairability=Repairability.PARTIAL,
    repair="fill in what is missing; a block of unknown type is dropped, a tool without a name is an error",
)
BLOCK_START_EMPTY = Rule(
    id="msg-block-start-empty",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Text, thinking and input begin empty; all that they hold comes in deltas.",
    affects=(
        "anthropic-sdk-python, anthropic-sdk-typescript: the text of the start is in no delta, and is not shown",
        "AI SDK anthropic: loses text and thoughts of the start; has input twice where deltas repeat it",
    ),
    repairability=Repairability.LOSSLESS,
    repair="send what the start holds as a delta",
)
BLOCK_SEQUENTIAL = Rule(
    id="msg-block-sequential",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="One block is open at a time: it is stopped before the next begins.",
    affects=("anthropic-sdk-typescript .stream(): no text event for any block but the one that began last",),
    repairability=Repairability.LOSSLESS,
    repair=(
        "stop text where the next block begins, and go on with it in a new one; other blocks wait for a tool's input"
    ),
)
BLOCK_STOP = Rule(
    id="msg-block-stop",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Every block ends with content_block_stop.",
    affects=(
        "AI SDK anthropic: hands a tool call over only at the stop, so it is lost",
        "anthropic-sdk-typescript .stream(): no contentBlock event",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it",
)
BLOCK_KNOWN = Rule(
    id="msg-block-known",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="A block has one of the types that the API has.",
    affects=("AI SDK anthropic: rejects the start of any other block, and a whole reply that has one",),
    repairability=Repairability.REPORT_ONLY,
    repair="report, and pass it on: a newer version of the API may have it",
)
DELTA_TYPE = Rule(
    id="msg-delta-type",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="A delta has a type that belongs to its block, and what it adds as a string.",
    affects=(
        "anthropic-sdk-python, anthropic-sdk-typescript: lose the text; a TypeError, or 'null', where it is null",
        "AI SDK anthropic: rejects a delta without its type or text; 'text part 0 not found' in another block",
    ),
    repairability=Repairability.PARTIAL,
    repair="a delta of another kind gets a block of its own; one that adds no string is dropped",
)
TOOL_IDS = Rule(
    id="msg-tool-ids",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Each tool_use block has an id that no other block has.",
    affects=(
        "AI SDK anthropic: rejects a block without an id, so the call is lost",
        "anthropic-sdk-python, anthropic-sdk-typescript: cannot assign a tool_result to its call",
    ),
    repairability=Repairability.LOSSLESS,
    repair="make one",
)
TOOL_INPUT_JSON = Rule(
    id="msg-tool-input-json",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="The input_json_deltas of a tool_use block, joined, are one JSON object, or nothing.",
    affects=(
        "anthropic-sdk-python .stream(): ValueError 'Unable to parse tool parameter JSON from model'",
        "anthropic-sdk-typescript .stream(): calls the tool with an empty input",
        "AI SDK anthropic: an invalid tool call",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; the intended input cannot be known",
)
DELTA_SENT = Rule(
    id="msg-delta-sent",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="After the last block a message_delta has the stop_reason, before message_stop.",
    affects=(
        "anthropic-sdk-python .stream(), anthropic-sdk-typescript .stream(): stop_reason null, and fail without delta",
        "AI SDK anthropic: finish reason 'other'",
    ),
    repairability=Repairability.PARTIAL,
    repair="where message_stop came, write tool_use if a tool was called, else end_turn",
)
STOP_REASON = Rule(
    id="msg-stop-reason",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary=(
        "stop_reason is end_turn, max_tokens, stop_sequence, tool_use, pause_turn, refusal or another of the API's."
    ),
    affects=(
        "anthropic-sdk-python tool_runner, anthropic-sdk-typescript toolRunner: run tools only after tool_use",
        "AI SDK anthropic: finish reason 'other'",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair=("map other providers' reasons (length is max_tokens), interruptions become an error; forward the rest"),
)
STOP_REASON_TOOL_USE = Rule(
    id="msg-stop-reason-tool-use",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="A message that calls tools stops with tool_use unless it was cut short; one that calls none never does.",
    affects=(
        "anthropic-sdk-python tool_runner, anthropic-sdk-typescript toolRunner: do not run the tools at end_turn",
        "AI SDK anthropic: finish reason 'stop' beside a tool call",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write tool_use, or end_turn where nothing was called",
)
STOP_SEQUENCE = Rule(
    id="msg-stop-sequence",
    severity=Severity.TOLERATED,
    endpoints=("messages",),
    summary="Where stop_reason is stop_sequence, stop_sequence is the string that stopped it.",
    affects=("callers with several stop_sequences: cannot know which one it was",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; which one it was cannot be known",
)
USAGE_START = Rule(
    id="msg-usage-start",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="The message of message_start has usage with input_tokens and output_tokens, whole numbers.",
    affects=(
        "AI SDK anthropic: fails the request without usage, or without input_tokens in it",
        "anthropic-sdk-python .stream(), anthropic-sdk-typescript .stream(): fail at message_delta without usage",
    ),
    repairability=Repairability.PARTIAL,
    repair="write 0 for missing counts; message_delta may have them",
)
USAGE_DELTA = Rule(
    id="msg-usage-delta",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="message_delta has usage with output_tokens, a whole number.",
    affects=(
        "anthropic-sdk-python .stream(): AttributeError without usage",
        "anthropic-sdk-typescript .stream(): TypeError without usage",
        "AI SDK anthropic: rejects the event, so the stop_reason is lost too",
    ),
    repairability=Repairability.PARTIAL,
    repair="write what message_start counted, or 0",
)
STOP_LAST = Rule(
    id="msg-stop-last",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="message_stop comes once, and nothing comes after it.",
    affects=(
        "anthropic-sdk-typescript .stream(): the message lacks a block that comes later",
        "AI SDK anthropic: usage that comes later is lost",
    ),
    repairability=Repairability.PARTIAL,
    repair="drop what follows; an answer that goes on after its end is not put together",
)
NO_DONE = Rule(
    id="msg-no-done",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="There is no [DONE]: message_stop ends the stream.",
    affects=("anthropic-sdk-python, anthropic-sdk-typescript: fail to read it as JSON where it has an event: line",),
    repairability=Repairability.LOSSLESS,
    repair="drop it; where it stands for message_stop, write that",
)
NO_EARLY_EOF = Rule(
    id="msg-no-early-eof",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="A stream ends with message_stop, or with an error event.",
    affects=(
        "anthropic-sdk-python: takes half an answer for a whole one",
        "anthropic-sdk-typescript .stream(): 'stream ended without producing a Message with role=assistant'",
        "AI SDK anthropic: finish reason 'other', no usage",
    ),
    repairability=Repairability.PARTIAL,
    repair="after a stop_reason write message_stop; before it send an error event",
)
NO_UNKNOWN_EVENTS = Rule(
    id="msg-no-unknown-events",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Send only the eight events of the API: the six of a message, ping and error.",
    affects=(
        "AI SDK anthropic: an error for each; fails the request if one comes first",
        "anthropic-sdk-python, anthropic-sdk-typescript: hand it over as an event of unknown type",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report and forward an event that is framed as Anthropic's are, which a newer API may have; drop others",
)
PING_FORM = Rule(
    id="msg-ping-form",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary='A ping is event: ping with data: {"type":"ping"}, or a comment.',
    affects=("AI SDK anthropic: an error for a ping whose data is empty, a word or {}",),
    repairability=Repairability.LOSSLESS,
    repair="write it in this form",
)
ERROR_EVENT = Rule(
    id="msg-error-event",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary='A failure is event: error with data: {"type":"error","error":{"type":"...","message":"..."}}.',
    affects=(
        "anthropic-sdk-python: skips an error without the name, and takes half an answer for a whole one",
        "anthropic-sdk-typescript: skips an error without the name; .stream() fails without saying why",
        "AI SDK anthropic: rejects any other shape, so the message of the error is lost",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write it in this shape",
)
ERROR_LAST = Rule(
    id="msg-error-last",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="Nothing comes after the error event.",
    affects=("AI SDK anthropic: finish reason 'stop' where message_delta and message_stop follow the error",),
    repairability=Repairability.LOSSLESS,
    repair="end the stream there",
)
ERROR_TYPE = Rule(
    id="msg-error-type",
    severity=Severity.TOLERATED,
    endpoints=("messages",),
    summary="The type of an error is one of the API's: invalid_request_error, overloaded_error, api_error and so on.",
    affects=("anthropic-sdk-python, anthropic-sdk-typescript: callers decide by the type whether to retry",),
    repairability=Repairability.LOSSLESS,
    repair="map it to Anthropic's types; others become api_error",
)
ERROR_BODY = Rule(
    id="msg-error-body",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary='The body of a failed request is {"type":"error","error":{"type":"...","message":"..."}}.',
    affects=(
        "AI SDK anthropic: the message is lost, only 'Bad Request' is shown",
        "anthropic-sdk-python, anthropic-sdk-typescript: the error has no type where error is no object",
    ),
    repairability=Repairability.LOSSLESS,
    repair="wrap it in that shape",
)
WHOLE_SHAPE = Rule(
    id="msg-whole-shape",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="A whole reply is a message: id, type, role, model, content, stop_reason, and usage with both counts.",
    affects=(
        "AI SDK anthropic: 'Invalid JSON response' without type, content, usage or its input_tokens",
        "anthropic-sdk-python: content is None, and reading it fails",
    ),
    repairability=Repairability.PARTIAL,
    repair="fill in what is missing, 0 for counts; without content, or stop_reason and calls, it is an error",
)
WHOLE_CONTENT = Rule(
    id="msg-whole-content",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="content of a whole reply is a list of blocks with the members of their types; input is an object.",
    affects=(
        "AI SDK anthropic: 'Invalid JSON response' at content as text, null in a text or thinking without a signature",
        "anthropic-sdk-python, anthropic-sdk-typescript: hand a tool's input over as a string",
    ),
    repairability=Repairability.PARTIAL,
    repair="make blocks of text, and an object of input that is a string; input that cannot be read becomes {}",
)
MAX_TOKENS = Rule(
    id="msg-max-tokens",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    summary="An answer that hits max_tokens stops with max_tokens, never with end_turn.",
    affects=(
        "anthropic-sdk-python, anthropic-sdk-typescript: half an answer looks whole",
        "AI SDK anthropic: finish reason 'stop' where it should be 'length'",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; a model that stopped right at the limit looks the same as a cut",
    detection=Detection.PROBE,
)
COUNT_TOKENS = Rule(
    id="msg-count-tokens",
    severity=Severity.TOLERATED,
    endpoints=("messages",),
    summary='POST /v1/messages/count_tokens answers {"input_tokens":n} for the same body, and generates nothing.',
    affects=("anthropic-sdk-python, anthropic-sdk-typescript: messages.count_tokens fails with a 404",),
    repairability=Repairability.PARTIAL,
    repair="count with the model's own tokenizer, where it is a local model",
    detection=Detection.PROBE,
)
