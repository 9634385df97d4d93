"""Rules about tool calls (`tool-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

INDEX_REQUIRED = Rule(
    id="tool-index-required",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Every tool_calls entry in a delta has an integer index.",
    affects=(
        "openai-python .stream(): TypeError, a list index must be an integer",
        "openai-node .stream(): returns no call at all",
        "AI SDK openai: rejects the chunk",
        "LangChain: turns argument pieces into invalid_tool_calls",
        "Zed, async-openai: fail to read the chunk",
        "open-webui: skips the entry, and the chat hangs",
    ),
    repairability=Repairability.LOSSLESS,
    repair="assign by id, else by call starts; fragments go to the open call",
)
INDEX_INT = Rule(
    id="tool-index-int",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="index is a number, not a string.",
    affects=("AI SDK openai-compatible, AI SDK openai: reject the chunk",),
    repairability=Repairability.LOSSLESS,
    repair="turn the string into a number",
)
INDEX_DISTINCT = Rule(
    id="tool-index-distinct",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Parallel calls have distinct indices.",
    affects=(
        "openai-python .stream(): one call 'call_acall_b' named 'getput' with arguments {..}{..}",
        "openai-node .stream(): one call with the last id and arguments {..}{..}",
        "pydantic-ai: one call 'getput' with arguments {..}{..}",
    ),
    repairability=Repairability.LOSSLESS,
    repair="number again when a new id appears on a used index",
)
INDEX_CONTIGUOUS = Rule(
    id="tool-index-contiguous",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Indices start at 0 and grow by one in order of first appearance.",
    affects=(
        "openai-python .stream(): IndexError when the first index is 1",
        "openai-node .stream(): TypeError when the first index is 1",
        "openai-go: accepts a jump of at most 128",
    ),
    repairability=Repairability.LOSSLESS,
    repair="number again in order of first appearance",
)
ID_FIRST = Rule(
    id="tool-id-first",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The first delta of a call has a non-empty id.",
    affects=(
        "goose: drops a call whose first delta lacks id, name or index",
        "AI SDK openai-compatible: version 1.0.27 throws \"Expected 'id' to be a string\"",
        "openai-python .stream(), LangChain: the call has the id None, so its result cannot be sent back",
    ),
    repairability=Repairability.LOSSLESS,
    repair="make an id",
)
ID_ONCE = Rule(
    id="tool-id-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Later deltas of the call do not repeat the id.",
    affects=(
        "openai-python .stream(): joins the ids to 'call_acall_acall_a'",
        "langchain4j: joins the ids",
    ),
    repairability=Repairability.LOSSLESS,
    repair="delete the repeated id",
)
ID_STABLE = Rule(
    id="tool-id-stable",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="If repeated the id never changes, and ids are unique within a choice.",
    affects=(
        "openai-python .stream(): joins all the ids into one",
        "LangChain: splits the call into invalid_tool_calls",
        "openai-node, pydantic-ai: keep the last id",
    ),
    repairability=Repairability.LOSSLESS,
    repair="keep the first id of a call",
)
TYPE_FIRST = Rule(
    id="tool-type-first",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The first delta has type: function, or custom.",
    affects=("openai-node .stream(): throws 'tool call snapshot missing `type`'",),
    repairability=Repairability.LOSSLESS,
    repair="insert the type by the object that the entry has",
)
NAME_WHOLE = Rule(
    id="tool-name-whole",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The name of the function or custom tool comes complete in the first delta.",
    affects=(
        "AI SDK openai: throws when the first delta has no name; a split name makes two calls",
        "AI SDK openai-compatible: makes two calls of a split name",
        "openai-node: keeps the last piece of a split name",
        "goose: drops a call whose first delta lacks id, name or index",
    ),
    repairability=Repairability.LOSSLESS,
    repair="hold the call until its name is whole (its arguments or another field begin)",
)
NAME_ONCE = Rule(
    id="tool-name-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Later deltas do not repeat the name.",
    affects=(
        "openai-python .stream(), LangChain, pydantic-ai: join the names to 'getgetget'",
        "langchain4j: joins the names",
        "gptel: starts a new call at each named delta",
    ),
    repairability=Repairability.LOSSLESS,
    repair="delete the repeated name",
)
LATER_FIELDS_ABSENT = Rule(
    id="tool-later-fields-absent",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="On later deltas id, type and name are absent, neither null nor '' ('' is known to break no client).",
    affects=("openai-python .stream(): AssertionError when a later delta has type null",),
    repairability=Repairability.LOSSLESS,
    repair="delete the empty members",
)
ARGS_STRING = Rule(
    id="tool-args-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="function.arguments (custom.input) is a string piece, never an object.",
    affects=(
        "openai-node, openai-node .stream(): the arguments become '[object Object]'",
        "AI SDK openai-compatible, AI SDK openai: reject the chunk",
        "LangChain: raises ValidationError",
        "openai-python: joining the pieces gives Python's notation, not JSON",
    ),
    repairability=Repairability.LOSSLESS,
    repair="encode the object as JSON text",
)
ARGS_JSON_OBJECT = Rule(
    id="tool-args-json-object",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The joined arguments of a function are one valid JSON object.",
    affects=(
        "open-webui: JSON that is no object ended the whole chat",
        "LangChain: completes cut arguments in silence and hands over a call that looks whole",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair="report; to complete cut JSON would be a guess",
)
ARGS_FIRST_EMPTY = Rule(
    id="tool-args-first-empty",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The first delta's arguments is '', never a '{}' placeholder before the real text.",
    affects=(
        "openai-python, openai-node: end with the arguments '{}{\"x\":1}'",
        "LangChain: ends with the arguments {}",
        "AI SDK openai-compatible: 2.0.87 ends with '{}{\"x\":1}', 1.0.27 runs the tool with {}",
    ),
    repairability=Repairability.LOSSLESS,
    repair="drop a '{}' that is followed by more",
)
ARGS_NO_ARG_CALL = Rule(
    id="tool-args-no-arg-call",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="A call without arguments streams '{}', not ''.",
    affects=(
        "openai-python: hands over '', and a runner that parses it as JSON fails",
        "openai-node .stream(): hands over '', and JSON.parse('') throws",
    ),
    repairability=Repairability.LOSSLESS,
    repair="append '{}' before the finish when the arguments are empty",
)
FUNCTION_PRESENT = Rule(
    id="tool-function-present",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Each entry has a function object, or a custom object where it calls a custom tool.",
    affects=(
        "openai-python .stream(): AssertionError",
        "LangChain: AttributeError, it reads the name from None",
        "AI SDK openai-compatible, AI SDK openai: reject the chunk",
    ),
    repairability=Repairability.LOSSLESS,
    repair="insert a function object with arguments ''",
)
ONE_AT_A_TIME = Rule(
    id="tool-one-at-a-time",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="Finish one call before starting the next, one entry per delta (interleaving by index is legal).",
    affects=(
        "gptel: reads only the first entry of a delta, so the others are lost",
        "openai-python .stream(), openai-node .stream(): report a call as done as soon as the index changes",
    ),
    repairability=Repairability.LOSSLESS,
    repair="put each entry in a chunk of its own; hold back pieces of later calls",
)
NO_CONTENT_IN_SAME_DELTA = Rule(
    id="tool-no-content-in-same-delta",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="Do not put content and tool_calls in one delta.",
    affects=("gptel: ignores tool_calls when content is not empty",),
    repairability=Repairability.LOSSLESS,
    repair="split it in two chunks, the text first",
)
NO_MARKUP_LEAK = Rule(
    id="tool-no-markup-leak",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The model's own markup of a call (<tool_call>, JSON in a fence) never stands in content.",
    affects=("openai-python, openai-node, AI SDK, LangChain: show the markup as the answer, and no tool is called",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; reading a model's markup is the work of its server",
    detection=Detection.PROBE,
)
CALLS_NULL = Rule(
    id="tool-calls-null",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Omit tool_calls when there is none (null and [] are tolerated).",
    affects=(),
    repairability=Repairability.LOSSLESS,
    repair="delete the key",
)
FINISH_FOLLOWS = Rule(
    id="tool-finish-follows",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="A finish chunk follows the last call delta before [DONE].",
    affects=(
        "goose: leaves the loop at [DONE] and loses the call",
        "openai-node .stream(): throws 'missing finish_reason for choice 0'",
        "AI SDK openai-compatible: errors, the stream ended without a finish reason",
    ),
    repairability=Repairability.PARTIAL,
    repair="only if upstream sent [DONE]: write tool_calls and report it; at a bare EOF send an error",
)
LEGACY_FUNCTION_CALL = Rule(
    id="tool-legacy-function-call",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Use tool_calls; delta.function_call only for requests with functions.",
    affects=("AI SDK openai-compatible, AI SDK openai, pydantic-ai: ignore it, so the call is lost",),
    repairability=Repairability.LOSSLESS,
    repair="translate it to tool_calls[0]",
)
