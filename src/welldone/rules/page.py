"""The page of a rule: what it wants, whom it hurts when it is broken, with examples."""

from importlib import resources


def read_page(rule: str) -> str:
    """The page of a rule, as Markdown, without the marks that only its generator needs."""
    text = resources.files("welldone.rules").joinpath("pages", f"{rule}.md").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("<!--"))
