"""In which field a client looks for a model's thoughts.

OpenAI's API has none. DeepSeek's name, `reasoning_content`, is the one most clients know; `reasoning` is OpenRouter's,
and vLLM's since 2026. Both at once are shown twice by some clients: so one is sent, unless the operator wants both.
"""

CONTENT = "reasoning_content"
PLAIN = "reasoning"

_SETTINGS = {CONTENT: (CONTENT,), PLAIN: (PLAIN,), "both": (CONTENT, PLAIN)}

_READERS = (
    # The start of a User-Agent's product, in lower case, and the name that it reads.
    ("codex", PLAIN),  # openai/codex, chat_completions.rs: no other name
    ("pydantic-ai", PLAIN),  # looks there first
    ("openrouter", PLAIN),  # its SDKs know its own API
    ("zed", CONTENT),  # knows both, and shows both
    ("ai-sdk", CONTENT),  # looks there first
    ("goose", CONTENT),  # no other name
    ("langchain4j", CONTENT),  # no other name
)
"""Clients of which it is known. Any other gets `reasoning_content`."""


def names_for(user_agent: str | None, setting: str) -> tuple[str, ...]:
    """The names under which a client's thoughts are sent. `setting`: reasoning_content, reasoning, both or auto."""
    fixed = _SETTINGS.get(setting)
    if fixed is not None:
        return fixed
    products = (user_agent or "").lower().split()
    for product in products:
        for start, name in _READERS:
            if product.startswith(start):
                return (name,)
    return (CONTENT,)
