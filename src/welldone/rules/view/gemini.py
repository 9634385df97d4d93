"""Elements of a Gemini reply, their candidates and parts.

An element is one object of a stream, or the whole reply of generateContent. Parsing is lenient, since a check must see
past one violation to find the others: a candidate without an index is numbered by its position.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from welldone.rules.view.choices import as_list, as_object, is_int
from welldone.rules.view.stream import StreamMessage

ELEMENT_KEYS = ("candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId")
"""Members of an element. An object that has none of them is something else."""
FINISH_REASONS = (
    *("STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "LANGUAGE", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
    *("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE", "MODEL_ARMOR", "CONTINUATION"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER", "NO_IMAGE"),
    *("UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "FINISH_REASON_UNSPECIFIED"),
)
"""`Candidate.FinishReason` of the API's reference and of google-genai."""
BLOCK_REASONS = (
    *("SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK"),
    *("BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"),
)
"""`PromptFeedback.BlockReason`, likewise."""
SUMMED_COUNTS = ("promptTokenCount", "candidatesTokenCount", "toolUsePromptTokenCount", "thoughtsTokenCount")
"""The counts whose sum is `totalTokenCount`."""
TOKEN_COUNTS = (*SUMMED_COUNTS, "cachedContentTokenCount", "totalTokenCount")
STATUSES_BY_CODE: dict[int, tuple[str, ...]] = {
    400: ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
    401: ("UNAUTHENTICATED",),
    403: ("PERMISSION_DENIED",),
    404: ("NOT_FOUND",),
    409: ("ABORTED", "ALREADY_EXISTS"),
    429: ("RESOURCE_EXHAUSTED",),
    499: ("CANCELLED",),
    500: ("INTERNAL", "UNKNOWN", "DATA_LOSS"),
    501: ("UNIMPLEMENTED",),
    503: ("UNAVAILABLE",),
    504: ("DEADLINE_EXCEEDED",),
}
"""Google's statuses by HTTP status: google/rpc/code.proto. Other HTTP statuses have no status of their own."""
STATUSES: frozenset[str] = frozenset(status for statuses in STATUSES_BY_CODE.values() for status in statuses)


class GeminiCandidate(msgspec.Struct, frozen=True):
    """A candidate in one element."""

    location: StreamMessage | None
    position: int
    """Position in the element's list."""
    json: dict[str, Any]

    @property
    def index(self) -> int:
        """Index; the position if it is missing or invalid."""
        index = self.json.get("index")
        return index if is_int(index) and index >= 0 else self.position

    @property
    def finish_reason(self) -> object:
        """The finish reason; None also for the empty string, which some servers send in its place."""
        reason = self.json.get("finishReason")
        return None if reason == "" else reason

    @property
    def content(self) -> dict[str, Any]:
        return as_object(self.json.get("content"))

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts that are objects."""
        return [content_part for content_part in as_list(self.content.get("parts")) if isinstance(content_part, dict)]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The function calls that are objects."""
        calls = (content_part.get("functionCall") for content_part in self.parts)
        return [function_call for function_call in calls if isinstance(function_call, dict)]

    @property
    def has_content(self) -> bool:
        """Whether it adds anything to the answer. The last element often has an empty text."""
        return any(value not in (None, "") for content_part in self.parts for value in content_part.values())


class GeminiElement(msgspec.Struct, frozen=True):
    """One element with its message; None for a whole reply."""

    location: StreamMessage | None
    json: dict[str, Any]
    candidates: list[GeminiCandidate]

    @property
    def usage(self) -> dict[str, Any]:
        """The usage; empty if there is none."""
        return as_object(self.json.get("usageMetadata"))

    @property
    def block_reason(self) -> object:
        """Why the prompt was blocked; None if it was not."""
        return as_object(self.json.get("promptFeedback")).get("blockReason")


class GeminiReplyView:
    """A stream or a whole reply."""

    def __init__(self, elements: Iterable[tuple[StreamMessage | None, dict[str, Any]]]) -> None:
        self.elements: list[GeminiElement] = []
        self.by_index: dict[int, list[GeminiCandidate]] = {}
        """The candidates of all elements, grouped by index in order of first appearance."""
        for location, value in elements:
            candidates = [
                GeminiCandidate(location, position, candidate)
                for position, candidate in enumerate(as_list(value.get("candidates")))
                if isinstance(candidate, dict)
            ]
            self.elements.append(GeminiElement(location, value, candidates))
            for candidate in candidates:
                self.by_index.setdefault(candidate.index, []).append(candidate)

    @property
    def candidates(self) -> list[GeminiCandidate]:
        """The candidates of all elements, in order."""
        return [candidate for element in self.elements for candidate in element.candidates]

    @property
    def unfinished(self) -> list[list[GeminiCandidate]]:
        """Candidates without a finish reason."""
        return [group for group in self.by_index.values() if all(entry.finish_reason is None for entry in group)]

    @property
    def is_blocked(self) -> bool:
        """Whether the prompt was blocked."""
        return any(element.block_reason is not None for element in self.elements)
