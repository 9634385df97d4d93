"""In which field a client looks for a model's thoughts.

OpenAI's API has none. DeepSeek's name, `reasoning_content`, is the one most clients know; `reasoning` is OpenRouter's,
and vLLM's since 2026. Both at once are shown twice by some clients: so one is sent, unless the operator wants both.
"""

REASONING_CONTENT = "reasoning_content"
REASONING = "reasoning"

_FIELDS_BY_SETTING = {
    REASONING_CONTENT: (REASONING_CONTENT,),
    REASONING: (REASONING,),
    "both": (REASONING_CONTENT, REASONING),
}

_FIELD_BY_CLIENT = (
    # The start of a User-Agent's product, in lower case, and the name that it reads.
    ("codex", REASONING),  # openai/codex, chat_completions.rs: no other name
    ("pydantic-ai", REASONING),  # looks there first
    ("openrouter", REASONING),  # its SDKs know its own API
    ("zed", REASONING_CONTENT),  # knows both, and shows both
    ("ai-sdk", REASONING_CONTENT),  # looks there first
    ("goose", REASONING_CONTENT),  # no other name
    ("langchain4j", REASONING_CONTENT),  # no other name
)
"""Clients of which it is known. Any other gets `reasoning_content`."""


def reasoning_fields_for(user_agent: str | None, setting: str) -> tuple[str, ...]:
    """The names under which a client's thoughts are sent. `setting`: reasoning_content, reasoning, both or auto."""
    fixed = _FIELDS_BY_SETTING.get(setting)
    if fixed is not None:
        return fixed
    products = (user_agent or "").lower().split()
    for product in products:
        for start, name in _FIELD_BY_CLIENT:
            if product.startswith(start):
                return (name,)
    return (REASONING_CONTENT,)
