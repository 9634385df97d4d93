"""HTML and SVG as trees: what stands in a tree as text stays text, whatever it is."""

from xml.etree.ElementTree import Element, tostring

LONGEST = 1_000
"""Characters of one text. What a server says is quoted to be recognised, not to be read whole."""


def element(kind: str, /, *inside: str | Element, **attributes: str) -> Element:
    """An element with texts and elements inside. Of an attribute that Python has a word for, the name ends in `_`.

    Texts may come from anywhere; attributes are always ours.
    """
    made = Element(kind, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    for part in inside:
        if isinstance(part, Element):
            made.append(part)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + printable(part)
        else:
            made.text = (made.text or "") + printable(part)
    return made


def code(text: str) -> Element:
    """What somebody else wrote."""
    return element("code", text)


def style(text: str) -> Element:
    """Our own rules of style, which are no text to be cut."""
    made = Element("style")
    made.text = text
    return made


def printable(text: str, longest: int = LONGEST) -> str:
    """The text in one line, not too long, and without characters that could move or hide what is around it."""
    cut = text if len(text) <= longest else text[:longest] + "…"
    return cut if cut.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def as_html(tree: Element) -> str:
    """The tree as HTML."""
    return tostring(tree, encoding="unicode", method="html")
