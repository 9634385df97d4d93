"""Faults of tool calls; each id begins with `tool-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

INDEX_REQUIRED = Fault(
    id="tool-index-required",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every tool_calls entry in a delta has an integer index.",
    hurts=(
        "openai-python .stream(): TypeError, a list index must be an integer",
        "openai-node .stream(): returns no call at all",
        "AI SDK openai: rejects the chunk",
        "LangChain: turns argument pieces into invalid_tool_calls",
        "Zed, async-openai: fail to read the chunk",
        "open-webui: skips the entry, and the chat hangs",
    ),
    mend=Mend.LOSSLESS,
    how="assign by id, else by call starts; fragments go to the open call",
)
INDEX_INT = Fault(
    id="tool-index-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="index is a number, not a string.",
    hurts=("AI SDK openai-compatible, AI SDK openai: reject the chunk",),
    mend=Mend.LOSSLESS,
    how="turn the string into a number",
)
INDEX_DISTINCT = Fault(
    id="tool-index-distinct",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Parallel calls have distinct indices.",
    hurts=(
        "openai-python .stream(): one call 'call_acall_b' named 'getput' with arguments {..}{..}",
        "openai-node .stream(): one call with the last id and arguments {..}{..}",
        "pydantic-ai: one call 'getput' with arguments {..}{..}",
    ),
    mend=Mend.LOSSLESS,
    how="number again when a new id appears on a used index",
)
INDEX_CONTIGUOUS = Fault(
    id="tool-index-contiguous",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Indices start at 0 and grow by one in order of first appearance.",
    hurts=(
        "openai-python .stream(): IndexError when the first index is 1",
        "openai-node .stream(): TypeError when the first index is 1",
        "openai-go: accepts a jump of at most 128",
    ),
    mend=Mend.LOSSLESS,
    how="number again in order of first appearance",
)
ID_FIRST = Fault(
    id="tool-id-first",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The first delta of a call has a non-empty id.",
    hurts=(
        "goose: drops a call whose first delta lacks id, name or index",
        "AI SDK openai-compatible: version 1.0.27 throws \"Expected 'id' to be a string\"",
        "openai-python .stream(), LangChain: the call has the id None, so its result cannot be sent back",
    ),
    mend=Mend.LOSSLESS,
    how="make an id",
)
ID_ONCE = Fault(
    id="tool-id-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Later deltas of the call do not repeat the id.",
    hurts=(
        "openai-python .stream(): joins the ids to 'call_acall_acall_a'",
        "langchain4j: joins the ids",
    ),
    mend=Mend.LOSSLESS,
    how="delete the repeated id",
)
ID_STABLE = Fault(
    id="tool-id-stable",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="If repeated the id never changes, and ids are unique within a choice.",
    hurts=(
        "openai-python .stream(): joins all the ids into one",
        "LangChain: splits the call into invalid_tool_calls",
        "openai-node, pydantic-ai: keep the last id",
    ),
    mend=Mend.LOSSLESS,
    how="keep the first id of a call",
)
TYPE_FIRST = Fault(
    id="tool-type-first",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The first delta has type: function, or custom.",
    hurts=("openai-node .stream(): throws 'tool call snapshot missing `type`'",),
    mend=Mend.LOSSLESS,
    how="insert the type by the object that the entry has",
)
NAME_WHOLE = Fault(
    id="tool-name-whole",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The name of the function or custom tool comes complete in the first delta.",
    hurts=(
        "AI SDK openai: throws when the first delta has no name; a split name makes two calls",
        "AI SDK openai-compatible: makes two calls of a split name",
        "openai-node: keeps the last piece of a split name",
        "goose: drops a call whose first delta lacks id, name or index",
    ),
    mend=Mend.LOSSLESS,
    how="hold the call until its name is whole (its arguments or another field begin)",
)
NAME_ONCE = Fault(
    id="tool-name-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Later deltas do not repeat the name.",
    hurts=(
        "openai-python .stream(), LangChain, pydantic-ai: join the names to 'getgetget'",
        "langchain4j: joins the names",
        "gptel: starts a new call at each named delta",
    ),
    mend=Mend.LOSSLESS,
    how="delete the repeated name",
)
LATER_FIELDS_ABSENT = Fault(
    id="tool-later-fields-absent",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="On later deltas id, type and name are absent, neither null nor '' ('' is known to break no client).",
    hurts=("openai-python .stream(): AssertionError when a later delta has type null",),
    mend=Mend.LOSSLESS,
    how="delete the empty members",
)
ARGS_STRING = Fault(
    id="tool-args-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="function.arguments (custom.input) is a string piece, never an object.",
    hurts=(
        "openai-node, openai-node .stream(): the arguments become '[object Object]'",
        "AI SDK openai-compatible, AI SDK openai: reject the chunk",
        "LangChain: raises ValidationError",
        "openai-python: joining the pieces gives Python's notation, not JSON",
    ),
    mend=Mend.LOSSLESS,
    how="encode the object as JSON text",
)
ARGS_JSON_OBJECT = Fault(
    id="tool-args-json-object",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The joined arguments of a function are one valid JSON object.",
    hurts=(
        "open-webui: JSON that is no object ended the whole chat",
        "LangChain: completes cut arguments in silence and hands over a call that looks whole",
    ),
    mend=Mend.REPORT,
    how="report; to complete cut JSON would be a guess",
)
ARGS_FIRST_EMPTY = Fault(
    id="tool-args-first-empty",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The first delta's arguments is '', never a '{}' placeholder before the real text.",
    hurts=(
        "openai-python, openai-node: end with the arguments '{}{\"x\":1}'",
        "LangChain: ends with the arguments {}",
        "AI SDK openai-compatible: 2.0.87 ends with '{}{\"x\":1}', 1.0.27 runs the tool with {}",
    ),
    mend=Mend.LOSSLESS,
    how="drop a '{}' that is followed by more",
)
ARGS_NO_ARG_CALL = Fault(
    id="tool-args-no-arg-call",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="A call without arguments streams '{}', not ''.",
    hurts=(
        "openai-python: hands over '', and a runner that parses it as JSON fails",
        "openai-node .stream(): hands over '', and JSON.parse('') throws",
    ),
    mend=Mend.LOSSLESS,
    how="append '{}' before the finish when the arguments are empty",
)
FUNCTION_PRESENT = Fault(
    id="tool-function-present",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Each entry has a function object, or a custom object where it calls a custom tool.",
    hurts=(
        "openai-python .stream(): AssertionError",
        "LangChain: AttributeError, it reads the name from None",
        "AI SDK openai-compatible, AI SDK openai: reject the chunk",
    ),
    mend=Mend.LOSSLESS,
    how="insert a function object with arguments ''",
)
ONE_AT_A_TIME = Fault(
    id="tool-one-at-a-time",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="Finish one call before starting the next, one entry per delta (interleaving by index is legal).",
    hurts=(
        "gptel: reads only the first entry of a delta, so the others are lost",
        "openai-python .stream(), openai-node .stream(): report a call as done as soon as the index changes",
    ),
    mend=Mend.LOSSLESS,
    how="put each entry in a chunk of its own; hold back pieces of later calls",
)
NO_CONTENT_IN_SAME_DELTA = Fault(
    id="tool-no-content-in-same-delta",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="Do not put content and tool_calls in one delta.",
    hurts=("gptel: ignores tool_calls when content is not empty",),
    mend=Mend.LOSSLESS,
    how="split it in two chunks, the text first",
)
NO_MARKUP_LEAK = Fault(
    id="tool-no-markup-leak",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The model's own markup of a call (<tool_call>, JSON in a fence) never stands in content.",
    hurts=("openai-python, openai-node, AI SDK, LangChain: show the markup as the answer, and no tool is called",),
    mend=Mend.REPORT,
    how="report; reading a model's markup is the work of its server",
    by=Hearing.PROBE,
)
CALLS_NULL = Fault(
    id="tool-calls-null",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Omit tool_calls when there is none (null and [] are tolerated).",
    hurts=(),
    mend=Mend.LOSSLESS,
    how="delete the key",
)
FINISH_FOLLOWS = Fault(
    id="tool-finish-follows",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="A finish chunk follows the last call delta before [DONE].",
    hurts=(
        "goose: leaves the loop at [DONE] and loses the call",
        "openai-node .stream(): throws 'missing finish_reason for choice 0'",
        "AI SDK openai-compatible: errors, the stream ended without a finish reason",
    ),
    mend=Mend.PARTIAL,
    how="only if upstream sent [DONE]: write tool_calls and say so; at a bare EOF send an error",
)
LEGACY_FUNCTION_CALL = Fault(
    id="tool-legacy-function-call",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Use tool_calls; delta.function_call only for requests with functions.",
    hurts=("AI SDK openai-compatible, AI SDK openai, pydantic-ai: ignore it, so the call is lost",),
    mend=Mend.LOSSLESS,
    how="translate it to tool_calls[0]",
)
