"""Faults of role and content deltas; each id begins with `delta-`."""

from welldone.wire.faults.fault import Fault, Hearing, Mend, Severity

ROLE_FIRST = Fault(
    id="delta-role-first",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The first chunk of each choice carries delta.role = assistant.",
    hurts=("openai-node .stream(): emits no content events, then throws 'missing role for choice 0'",),
    mend=Mend.LOSSLESS,
    how="insert a role chunk before the first delta of the choice",
)
ROLE_ONCE = Fault(
    id="delta-role-once",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="role is not repeated on later chunks of the choice.",
    hurts=("openai-python .stream(): the role becomes 'assistantassistant'",),
    mend=Mend.LOSSLESS,
    how="delete it from later deltas",
)
ROLE_ABSENT_LATER = Fault(
    id="delta-role-absent-later",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="On later chunks role is absent: not null, not ''.",
    hurts=(
        "AI SDK openai: '' fails the validation of the chunk and its text is lost",
        "AI SDK openai-compatible 1.0.27: '' fails the validation of the chunk and its text is lost",
        "mistral-vibe: rejected null",
        "Zed: '' is not in its Role enum, the chunk fails to parse",
    ),
    mend=Mend.LOSSLESS,
    how="delete it",
)
ROLE_ASSISTANT = Fault(
    id="delta-role-assistant",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The role value is assistant.",
    hurts=(
        "openai-node .stream(): throws, since no message with role assistant came",
        "AI SDK openai-compatible, AI SDK openai: AI_TypeValidationError",
        "openai-python .stream(): hands on the wrong role",
        "openai-dotnet: throws on an unknown role",
    ),
    mend=Mend.LOSSLESS,
    how="rewrite it to assistant",
)
ROLE_CONTENT_EMPTY = Fault(
    id="delta-role-content-empty",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="The role chunk of a text reply has content '' (null or absent are tolerated; null is normal for tool calls).",
    hurts=("unmute: AssertionError on null (kyutai-labs/unmute#80)",),
    mend=Mend.LOSSLESS,
    how="write ''",
)
CONTENT_STRING = Fault(
    id="delta-content-string",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="delta.content is a string (or null), never an array or number.",
    hurts=(
        "openai-python: an array gives its Python repr as text",
        "openai-python .stream(), litellm: the text of an array is lost",
        "openai-node: an array becomes '[object Object]'",
        "AI SDK openai: AI_TypeValidationError, the text is lost",
        "LangChain: ValidationError at a number",
        "go-openai, Zed: anything but a string fails to parse",
    ),
    mend=Mend.LOSSLESS,
    how="join text parts of an array, send thinking parts as reasoning and other parts as the field content_parts",
)
CONTENT_INCREMENTAL = Fault(
    id="delta-content-incremental",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Each content is only the new text, never the text so far.",
    hurts=(
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: text is doubled ('HelloHello world')",
    ),
    mend=Mend.REPORT,
    how='report; with `text = "cumulative"` for the upstream (`fix --text cumulative`) only the new text is sent',
)
OBJECT_PRESENT = Fault(
    id="delta-object-present",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Every choice has a delta object, {} when there is nothing to say.",
    hurts=(
        "openai-python .stream(): AttributeError \"'NoneType' object has no attribute 'to_dict'\"",
        "LangChain, pydantic-ai: finish_reason is lost",
        "inference-benchmarker: panics",
        "async-openai: the chunk fails to parse",
    ),
    mend=Mend.LOSSLESS,
    how="write {}",
)
NOT_MESSAGE = Fault(
    id="delta-not-message",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="Chunks use delta; message belongs to non-stream replies.",
    hurts=(
        "openai-python, openai-node, AI SDK, LangChain, pydantic-ai, litellm: the text is lost, the answer is empty",
        "openai-python .stream(): AttributeError \"'NoneType' object has no attribute 'to_dict'\"",
        "org-ai: takes the first chunk as a whole reply",
    ),
    mend=Mend.LOSSLESS,
    how="move the fields into delta (the first time) or drop the duplicate",
)
FINAL_EMPTY = Fault(
    id="delta-final-empty",
    severity=Severity.TOLERATED,
    endpoints=("chat",),
    rule="The finish chunk's delta is {}, not {content: null, role: null}.",
    hurts=("ChatBox: appended 'null' to every answer (BerriAI/litellm#2010)",),
    mend=Mend.LOSSLESS,
    how="drop the members that say nothing",
)
CONCAT_EQUALS_FULL = Fault(
    id="delta-concat-equals-full",
    severity=Severity.BREAKS,
    endpoints=("chat",),
    rule="The joined deltas are the text that a reply without stream would have, white space included.",
    hurts=("openai-python, openai-node: give an answer with holes, and nothing tells them",),
    mend=Mend.REPORT,
    how="report; what a chunk has lost cannot be seen in the stream",
    by=Hearing.PROBE,
)
NO_NOOP_FLOOD = Fault(
    id="delta-no-noop-flood",
    severity=Severity.STYLE,
    endpoints=("chat",),
    rule="Avoid long runs of chunks with nothing in them.",
    hurts=("autogen: warns past a limit of empty chunks in a row; older versions raised an error",),
    mend=Mend.LOSSLESS,
    how="send at most 16 in a row, the rest as comments",
)
