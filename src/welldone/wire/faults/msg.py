"""Faults of /v1/messages, Anthropic's dialect; each id begins with `msg-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

EVENT_NAME = Fault(
    id="msg-event-name",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Each event says its type twice: in its event: line, and as type in its JSON.",
    hurts=(
        "anthropic-sdk-python, anthropic-sdk-typescript: skip an event without a name, so that nothing is heard",
        "anthropic-sdk-python .stream(), anthropic-sdk-typescript .stream(): fail where the JSON has no type",
        "AI SDK anthropic: fails the request where the JSON has no type",
    ),
    mend=Mend.LOSSLESS,
    how="write both, from the one that is there",
)
START_FIRST = Fault(
    id="msg-start-first",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="The first event is message_start; only pings come before it.",
    hurts=(
        "anthropic-sdk-python .stream(): AssertionError where it should give the message",
        "anthropic-sdk-typescript .stream(): 'request ended without sending any chunks'",
        "AI SDK anthropic: reports 0 input tokens",
    ),
    mend=Mend.LOSSLESS,
    how="write it before the first event",
)
START_FULL = Fault(
    id="msg-start-full",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="The message of message_start has id, type, role, model, content [], and stop_reason and stop_sequence null.",
    hurts=(
        "anthropic-sdk-python .stream(): AttributeError where content is missing or null",
        "anthropic-sdk-typescript .stream(): TypeError where content is missing or null",
        "AI SDK anthropic: fails the request where message is missing, id is a number or content has text",
    ),
    mend=Mend.LOSSLESS,
    how="fill in what is missing",
)
START_ONCE = Fault(
    id="msg-start-once",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="message_start comes once.",
    hurts=(
        "anthropic-sdk-typescript .stream(): 'Unexpected event order, got message_start before receiving ...'",
        "AI SDK anthropic: fails the answer at a second one with another id",
    ),
    mend=Mend.LOSSLESS,
    how="drop the later ones",
)
BLOCK_INDEX = Fault(
    id="msg-block-index",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Blocks are numbered from 0 without gaps, and every event of a block has its number as index.",
    hurts=(
        "anthropic-sdk-python .stream(): IndexError or TypeError, as it finds the block by its index",
        "anthropic-sdk-typescript .stream(): the message lacks the text",
        "AI SDK anthropic: rejects an event whose index is missing or a string, so its text is lost",
    ),
    mend=Mend.LOSSLESS,
    how="number the blocks",
)
BLOCK_START_FIRST = Fault(
    id="msg-block-start-first",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="A block begins with content_block_start; no delta or stop comes for a block that is not open.",
    hurts=(
        "anthropic-sdk-python .stream(): IndexError, list index out of range",
        "anthropic-sdk-typescript .stream(): TypeError, or a message that lacks the text",
        "AI SDK anthropic: error 'text part 0 not found'; a tool call is lost, or cut where its block was stopped",
    ),
    mend=Mend.PARTIAL,
    how="begin a block of the delta's kind; a stop of no block is dropped; a tool's input without its name is an error",
)
BLOCK_START_FULL = Fault(
    id="msg-block-start-full",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="content_block has its type and that type's members: text; thinking and signature; name and input.",
    hurts=(
        "anthropic-sdk-python .stream(): TypeError where text or thinking is missing or null",
        "anthropic-sdk-typescript .stream(): thoughts begin with 'undefined'",
        "AI SDK anthropic: rejects the start, so a tool call is lost",
    ),
    mend=Mend.PARTIAL,
    how="fill in what is missing; a block whose type cannot be told is dropped, a tool without a name is an error",
)
BLOCK_START_EMPTY = Fault(
    id="msg-block-start-empty",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Text, thinking and input begin empty; all that they hold comes in deltas.",
    hurts=(
        "anthropic-sdk-python, anthropic-sdk-typescript: the text of the start is in no delta, and is not shown",
        "AI SDK anthropic: loses text and thoughts of the start; has input twice where deltas repeat it",
    ),
    mend=Mend.LOSSLESS,
    how="send what the start holds as a delta",
)
BLOCK_SEQUENTIAL = Fault(
    id="msg-block-sequential",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="One block is open at a time: it is stopped before the next begins.",
    hurts=("anthropic-sdk-typescript .stream(): no text event for any block but the one that began last",),
    mend=Mend.LOSSLESS,
    how="stop text where the next block begins, and go on with it in a new one; other blocks wait for a tool's input",
)
BLOCK_STOP = Fault(
    id="msg-block-stop",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Every block ends with content_block_stop.",
    hurts=(
        "AI SDK anthropic: hands a tool call over only at the stop, so it is lost",
        "anthropic-sdk-typescript .stream(): no contentBlock event",
    ),
    mend=Mend.LOSSLESS,
    how="write it",
)
BLOCK_KNOWN = Fault(
    id="msg-block-known",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="A block has one of the types that the API has.",
    hurts=("AI SDK anthropic: rejects the start of any other block, and a whole reply that has one",),
    mend=Mend.REPORT,
    how="report, and pass it on: a newer version of the API may have it",
)
DELTA_TYPE = Fault(
    id="msg-delta-type",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="A delta has a type that belongs to its block, and what it adds as a string.",
    hurts=(
        "anthropic-sdk-python, anthropic-sdk-typescript: lose the text; a TypeError, or 'null', where it is null",
        "AI SDK anthropic: rejects a delta without its type or text; 'text part 0 not found' in another block",
    ),
    mend=Mend.PARTIAL,
    how="a delta of another kind gets a block of its own; one that adds no string is dropped",
)
TOOL_IDS = Fault(
    id="msg-tool-ids",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Each tool_use block has an id that no other block has.",
    hurts=(
        "AI SDK anthropic: rejects a block without an id, so the call is lost",
        "anthropic-sdk-python, anthropic-sdk-typescript: cannot say which call a tool_result answers",
    ),
    mend=Mend.LOSSLESS,
    how="make one",
)
TOOL_INPUT_JSON = Fault(
    id="msg-tool-input-json",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="The input_json_deltas of a tool_use block, joined, are one JSON object, or nothing.",
    hurts=(
        "anthropic-sdk-python .stream(): ValueError 'Unable to parse tool parameter JSON from model'",
        "anthropic-sdk-typescript .stream(): calls the tool with an empty input",
        "AI SDK anthropic: an invalid tool call",
    ),
    mend=Mend.REPORT,
    how="report; what the model meant cannot be known",
)
DELTA_SENT = Fault(
    id="msg-delta-sent",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="After the last block a message_delta says the stop_reason, before message_stop.",
    hurts=(
        "anthropic-sdk-python .stream(), anthropic-sdk-typescript .stream(): stop_reason null, and fail without delta",
        "AI SDK anthropic: finish reason 'other'",
    ),
    mend=Mend.PARTIAL,
    how="where message_stop came, write tool_use if a tool was called, else end_turn",
)
STOP_REASON = Fault(
    id="msg-stop-reason",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="stop_reason is end_turn, max_tokens, stop_sequence, tool_use, pause_turn, refusal or another of the API's.",
    hurts=(
        "anthropic-sdk-python tool_runner, anthropic-sdk-typescript toolRunner: run tools only after tool_use",
        "AI SDK anthropic: finish reason 'other'",
    ),
    mend=Mend.REPORT,
    how="map other providers' words (length is max_tokens), interruptions become an error; report and forward the rest",
)
STOP_REASON_TOOL_USE = Fault(
    id="msg-stop-reason-tool-use",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="A message that calls tools stops with tool_use unless it was cut short; one that calls none never does.",
    hurts=(
        "anthropic-sdk-python tool_runner, anthropic-sdk-typescript toolRunner: do not run the tools at end_turn",
        "AI SDK anthropic: finish reason 'stop' beside a tool call",
    ),
    mend=Mend.LOSSLESS,
    how="write tool_use, or end_turn where nothing was called",
)
STOP_SEQUENCE = Fault(
    id="msg-stop-sequence",
    severity=Severity.TOLERATED,
    endpoints=("messages",),
    rule="Where stop_reason is stop_sequence, stop_sequence is the string that stopped it.",
    hurts=("callers with several stop_sequences: cannot know which one it was",),
    mend=Mend.REPORT,
    how="report; which one it was cannot be known",
)
USAGE_START = Fault(
    id="msg-usage-start",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="The message of message_start has usage with input_tokens and output_tokens, whole numbers.",
    hurts=(
        "AI SDK anthropic: fails the request without usage, or without input_tokens in it",
        "anthropic-sdk-python .stream(), anthropic-sdk-typescript .stream(): fail at message_delta without usage",
    ),
    mend=Mend.PARTIAL,
    how="write 0 for what is not told; message_delta may tell it",
)
USAGE_DELTA = Fault(
    id="msg-usage-delta",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="message_delta has usage with output_tokens, a whole number.",
    hurts=(
        "anthropic-sdk-python .stream(): AttributeError without usage",
        "anthropic-sdk-typescript .stream(): TypeError without usage",
        "AI SDK anthropic: rejects the event, so the stop_reason is lost too",
    ),
    mend=Mend.PARTIAL,
    how="write what message_start counted, or 0",
)
STOP_LAST = Fault(
    id="msg-stop-last",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="message_stop comes once, and nothing comes after it.",
    hurts=(
        "anthropic-sdk-typescript .stream(): the message lacks a block that comes later",
        "AI SDK anthropic: usage that comes later is lost",
    ),
    mend=Mend.PARTIAL,
    how="drop what follows; an answer that goes on after its end is not put together",
)
NO_DONE = Fault(
    id="msg-no-done",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="There is no [DONE]: message_stop ends the stream.",
    hurts=("anthropic-sdk-python, anthropic-sdk-typescript: fail to read it as JSON where it has an event: line",),
    mend=Mend.LOSSLESS,
    how="drop it; where it stands for message_stop, write that",
)
NO_EARLY_EOF = Fault(
    id="msg-no-early-eof",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="A stream ends with message_stop, or with an error event.",
    hurts=(
        "anthropic-sdk-python: takes half an answer for a whole one",
        "anthropic-sdk-typescript .stream(): 'stream ended without producing a Message with role=assistant'",
        "AI SDK anthropic: finish reason 'other', no usage",
    ),
    mend=Mend.PARTIAL,
    how="after a stop_reason write message_stop; before it send an error event",
)
NO_UNKNOWN_EVENTS = Fault(
    id="msg-no-unknown-events",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Send only the eight events of the API: the six of a message, ping and error.",
    hurts=(
        "AI SDK anthropic: an error for each; fails the request if one comes first",
        "anthropic-sdk-python, anthropic-sdk-typescript: hand it over as an event whose type nobody knows",
    ),
    mend=Mend.REPORT,
    how="report and forward an event that is framed as Anthropic's are, which a newer API may have; drop others",
)
PING_FORM = Fault(
    id="msg-ping-form",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule='A ping is event: ping with data: {"type":"ping"}, or a comment.',
    hurts=("AI SDK anthropic: an error for a ping whose data is empty, a word or {}",),
    mend=Mend.LOSSLESS,
    how="write it in this form",
)
ERROR_EVENT = Fault(
    id="msg-error-event",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule='A failure is event: error with data: {"type":"error","error":{"type":"...","message":"..."}}.',
    hurts=(
        "anthropic-sdk-python: skips an error without the name, and takes half an answer for a whole one",
        "anthropic-sdk-typescript: skips an error without the name; .stream() fails without saying why",
        "AI SDK anthropic: rejects any other shape, so the message of the error is lost",
    ),
    mend=Mend.LOSSLESS,
    how="write it in this shape",
)
ERROR_LAST = Fault(
    id="msg-error-last",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="Nothing comes after the error event.",
    hurts=("AI SDK anthropic: finish reason 'stop' where message_delta and message_stop follow the error",),
    mend=Mend.LOSSLESS,
    how="end the stream there",
)
ERROR_TYPE = Fault(
    id="msg-error-type",
    severity=Severity.TOLERATED,
    endpoints=("messages",),
    rule="The type of an error is one of the API's: invalid_request_error, overloaded_error, api_error and so on.",
    hurts=("anthropic-sdk-python, anthropic-sdk-typescript: callers tell by the type whether to try again",),
    mend=Mend.LOSSLESS,
    how="say it in Anthropic's words; what has none is an api_error",
)
ERROR_BODY = Fault(
    id="msg-error-body",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule='The body of a failed request is {"type":"error","error":{"type":"...","message":"..."}}.',
    hurts=(
        "AI SDK anthropic: the message is lost, 'Bad Request' is all it says",
        "anthropic-sdk-python, anthropic-sdk-typescript: the error has no type where error is no object",
    ),
    mend=Mend.LOSSLESS,
    how="wrap it in that shape",
)
WHOLE_SHAPE = Fault(
    id="msg-whole-shape",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="A whole reply is a message: id, type, role, model, content, stop_reason, and usage with both counts.",
    hurts=(
        "AI SDK anthropic: 'Invalid JSON response' without type, content, usage or its input_tokens",
        "anthropic-sdk-python: content is None, and reading it fails",
    ),
    mend=Mend.PARTIAL,
    how="fill in what is missing, 0 where nobody counted; without content, or stop_reason and calls, it is an error",
)
WHOLE_CONTENT = Fault(
    id="msg-whole-content",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="content of a whole reply is a list of blocks with the members of their types; input is an object.",
    hurts=(
        "AI SDK anthropic: 'Invalid JSON response' at content as text, null in a text or thinking without a signature",
        "anthropic-sdk-python, anthropic-sdk-typescript: hand a tool's input over as a string",
    ),
    mend=Mend.PARTIAL,
    how="make blocks of text, and an object of input that is a string; input that cannot be read becomes {}",
)
MAX_TOKENS = Fault(
    id="msg-max-tokens",
    severity=Severity.BREAKS,
    endpoints=("messages",),
    rule="An answer that hits max_tokens stops with max_tokens, never with end_turn.",
    hurts=(
        "anthropic-sdk-python, anthropic-sdk-typescript: half an answer looks whole",
        "AI SDK anthropic: finish reason 'stop' where it should be 'length'",
    ),
    mend=Mend.REPORT,
    how="report; that a model stopped right at the limit cannot be told from a cut",
    by=Hearing.PROBE,
)
COUNT_TOKENS = Fault(
    id="msg-count-tokens",
    severity=Severity.TOLERATED,
    endpoints=("messages",),
    rule='POST /v1/messages/count_tokens answers {"input_tokens":n} for the same body, and generates nothing.',
    hurts=("anthropic-sdk-python, anthropic-sdk-typescript: messages.count_tokens fails with a 404",),
    mend=Mend.PARTIAL,
    how="count with the model's own tokenizer, where it is a local model",
    by=Hearing.PROBE,
)
