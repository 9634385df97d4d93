"""XML, HTML and SVG as trees: what stands in a tree as text stays text, whatever it is."""

from xml.etree.ElementTree import Element, tostring


def element(kind: str, /, *inside: str | Element, **attributes: str) -> Element:
    """An element with texts and elements inside. Of an attribute that Python has a word for, the name ends in `_`.

    Texts may come from anywhere, made inert; attributes are always ours.
    """
    made = Element(kind, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    for part in inside:
        if isinstance(part, Element):
            made.append(part)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + part
        else:
            made.text = (made.text or "") + part
    return made


def code(text: str) -> Element:
    """What somebody else wrote."""
    return element("code", text)


def as_html(tree: Element) -> str:
    """The tree as HTML."""
    return tostring(tree, encoding="unicode", method="html")


def as_xml(tree: Element) -> str:
    """The tree as XML."""
    return tostring(tree, encoding="unicode")
