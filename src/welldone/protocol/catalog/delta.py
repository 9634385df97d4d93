"""Rules about role and content deltas (`delta-`)."""

from welldone.protocol.catalog.rule import Detection, Repairability, Rule, Severity

ROLE_FIRST = Rule(
    id="delta-role-first",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The first chunk of each choice carries delta.role = assistant.",
    affects=("openai-node .stream(): emits no content events, then throws 'missing role for choice 0'",),
    repairability=Repairability.LOSSLESS,
    repair="insert a role chunk before the first delta of the choice",
)
ROLE_ONCE = Rule(
    id="delta-role-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="role is not repeated on later chunks of the choice.",
    affects=("openai-python .stream(): the role becomes 'assistantassistant'",),
    repairability=Repairability.LOSSLESS,
    repair="delete it from later deltas",
)
ROLE_ABSENT_LATER = Rule(
    id="delta-role-absent-later",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="On later chunks role is absent: not null, not ''.",
    affects=(
        "AI SDK openai: '' fails the validation of the chunk and its text is lost",
        "AI SDK openai-compatible 1.0.27: '' fails the validation of the chunk and its text is lost",
        "mistral-vibe: rejected null",
        "Zed: '' is not in its Role enum, the chunk fails to parse",
    ),
    repairability=Repairability.LOSSLESS,
    repair="delete it",
)
ROLE_ASSISTANT = Rule(
    id="delta-role-assistant",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The role value is assistant.",
    affects=(
        "openai-node .stream(): throws, since no message with role assistant came",
        "AI SDK openai-compatible, AI SDK openai: AI_TypeValidationError",
        "openai-python .stream(): hands on the wrong role",
        "openai-dotnet: throws on an unknown role",
    ),
    repairability=Repairability.LOSSLESS,
    repair="rewrite it to assistant",
)
ROLE_CONTENT_EMPTY = Rule(
    id="delta-role-content-empty",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary=(
        "The role chunk of a text reply has content '' (null or absent are tolerated; null is normal for tool calls)."
    ),
    affects=("unmute: AssertionError on null (kyutai-labs/unmute#80)",),
    repairability=Repairability.LOSSLESS,
    repair="write ''",
)
CONTENT_STRING = Rule(
    id="delta-content-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="delta.content is a string (or null), never an array or number.",
    affects=(
        "openai-python: an array gives its Python repr as text",
        "openai-python .stream(), litellm: the text of an array is lost",
        "openai-node: an array becomes '[object Object]'",
        "AI SDK openai: AI_TypeValidationError, the text is lost",
        "LangChain: ValidationError at a number",
        "go-openai, Zed: anything but a string fails to parse",
    ),
    repairability=Repairability.LOSSLESS,
    repair="join text parts of an array, send thinking parts as reasoning and other parts as the field content_parts",
)
CONTENT_INCREMENTAL = Rule(
    id="delta-content-incremental",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Each content is only the new text, never the text so far.",
    affects=(
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: text is doubled ('HelloHello world')",
    ),
    repairability=Repairability.REPORT_ONLY,
    repair='report; with `text = "cumulative"` for the upstream (`fix --text cumulative`) only the new text is sent',
)
OBJECT_PRESENT = Rule(
    id="delta-object-present",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Every choice has a delta object, {} when it has no content.",
    affects=(
        "openai-python .stream(): AttributeError \"'NoneType' object has no attribute 'to_dict'\"",
        "LangChain, pydantic-ai: finish_reason is lost",
        "inference-benchmarker: panics",
        "async-openai: the chunk fails to parse",
    ),
    repairability=Repairability.LOSSLESS,
    repair="write {}",
)
NOT_MESSAGE = Rule(
    id="delta-not-message",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="Chunks use delta; message belongs to non-stream replies.",
    affects=(
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: the text is lost, the answer is empty",
        "openai-python .stream(): AttributeError \"'NoneType' object has no attribute 'to_dict'\"",
        "org-ai: takes the first chunk as a whole reply",
    ),
    repairability=Repairability.LOSSLESS,
    repair="move the fields into delta (the first time) or drop the duplicate",
)
FINAL_EMPTY = Rule(
    id="delta-final-empty",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    summary="The finish chunk's delta is {}, not {content: null, role: null}.",
    affects=("ChatBox: appended 'null' to every answer (BerriAI/litellm#2010)",),
    repairability=Repairability.LOSSLESS,
    repair="drop null and empty members",
)
CONCAT_EQUALS_FULL = Rule(
    id="delta-concat-equals-full",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    summary="The joined deltas are the text that a reply without stream would have, white space included.",
    affects=("openai-python, openai-node: give an incomplete answer without an error",),
    repairability=Repairability.REPORT_ONLY,
    repair="report; what a chunk has lost cannot be seen in the stream",
    detection=Detection.PROBE,
)
NO_NOOP_FLOOD = Rule(
    id="delta-no-noop-flood",
    severity=Severity.STYLE,
    endpoints=("chat",),
    summary="Avoid long runs of chunks with nothing in them.",
    affects=("autogen: warns past a limit of empty chunks in a row; older versions raised an error",),
    repairability=Repairability.LOSSLESS,
    repair="send at most 16 in a row, the rest as comments",
)
