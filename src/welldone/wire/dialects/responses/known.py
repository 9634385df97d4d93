"""The events of the Responses dialect, by what they are about.

They are those of OpenAI's published types. Clients that check the type throw at any other.
"""

from welldone.wire.dialects.responses.scribe import CALL_TEXTS, PART_TEXTS

PROGRESS_EVENTS = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events that carry a Response that goes on."""
TERMINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events that carry a Response that has ended: one of them is the last."""

TEXT_DELTA_EVENTS = {f"{way.event_prefix}.delta": kind for kind, way in (PART_TEXTS | CALL_TEXTS).items()}
"""More of a text, and the type of the part or item that it is of."""
TEXT_EVENTS = TEXT_DELTA_EVENTS | {f"{way.event_prefix}.done": kind for kind, way in (PART_TEXTS | CALL_TEXTS).items()}
"""More of a text, or all of it."""
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
PART_ADDED = frozenset({"response.content_part.added", "response.reasoning_summary_part.added"})
PART_DONE = frozenset({"response.content_part.done", "response.reasoning_summary_part.done"})
ANNOTATION_ADDED = "response.output_text.annotation.added"

ITEM_TYPE_OF_PART = {
    "output_text": "message",
    "refusal": "message",
    "reasoning_text": "reasoning",
    "summary_text": "reasoning",
}
"""The type of the item that a part is of."""
INDEX_MEMBER_OF_PART = {kind: "summary_index" if kind == "summary_text" else "content_index" for kind in PART_TEXTS}
"""The member that tells which part of its item it is."""

_HOSTED_TOOL_STEPS = {
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "compaction": ("compacting",),
    "file_search_call": ("in_progress", "searching", "completed"),
    "image_generation_call": ("in_progress", "generating", "partial_image", "completed"),
    "mcp_call": ("in_progress", "completed", "failed"),
    "mcp_list_tools": ("in_progress", "completed", "failed"),
    "web_search_call": ("in_progress", "searching", "completed"),
}
HOSTED_TOOL_EVENTS = {
    f"response.{kind}.{step}": kind for kind, steps in _HOSTED_TOOL_STEPS.items() for step in steps
} | {
    "response.apply_patch_call_operation_diff.delta": "apply_patch_call",
    "response.apply_patch_call_operation_diff.done": "apply_patch_call",
    "response.shell_call_command.added": "shell_call",
    "response.shell_call_command.delta": "shell_call",
    "response.shell_call_command.done": "shell_call",
    "response.shell_call_output_content.delta": "shell_call_output",
    "response.shell_call_output_content.done": "shell_call_output",
}
"""What a tool of the server does, and the type of the item that tells of it."""
AUDIO_EVENTS = frozenset(
    {
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.delta",
        "response.audio.transcript.done",
    }
)
"""Events that are about no item."""


OUTPUT_EVENTS = frozenset(
    {
        *TEXT_EVENTS,
        *PART_ADDED,
        *PART_DONE,
        ANNOTATION_ADDED,
        *HOSTED_TOOL_EVENTS,
        *AUDIO_EVENTS,
        ITEM_ADDED,
        ITEM_DONE,
    },
)
"""All events that tell of the output."""
