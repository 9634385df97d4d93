"""A byte-level vocabulary whose tokens cut characters in pieces, and what each piece leaves open.

All 256 bytes are tokens, so every text can be read and every broken text be written. Merges add pieces of words, whole
characters, pieces of characters, and tokens that end one character and begin the next.
"""

import codecs
from dataclasses import dataclass
from enum import IntEnum
from functools import cache


class Need(IntEnum):
    """What the text so far waits for, if it is to be right UTF-8 and its calls to be calls.

    A model that sees one token back must know how far in a character it is. So second bytes and last bytes are kept
    apart: a character that the model makes byte by byte has 0x80 to 0x9E in its middle and 0xA0 to 0xBF at its end.
    """

    NOTHING = 0
    LAST = 1  # one byte more
    MIDDLE = 2  # two bytes more
    PLANE = 3  # three bytes more, of which the first is 0x9F: the plane of emoji
    LINE = 4  # a new line: llama.cpp hears a call's beginning only with it
    TURN = 5  # the end of the answer


class Mark(IntEnum):
    """The kinds of tokens, by llama.cpp's numbers."""

    NORMAL = 1
    CONTROL = 3  # not shown in a text
    ADDED = 4  # never cut in pieces, shown in a text


@dataclass(frozen=True)
class Token:
    """A token: its bytes, its kind, what must be open before it, and what it leaves open."""

    data: bytes
    mark: Mark = Mark.NORMAL
    before: Need = Need.NOTHING
    after: Need = Need.NOTHING

    def fits(self, need: Need) -> bool:
        """Whether this may come where `need` is open."""
        match need:
            case Need.LINE:
                return self.data == b"\n"
            case Need.TURN:
                return self.data == END.encode()
            case _:
                return self.before is need

    @property
    def text(self) -> str:
        """As the file spells it: each byte as one visible character; special tokens as they are."""
        return spell(self.data) if self.mark is Mark.NORMAL else self.data.decode()


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their numbers, and the merges that make them of bytes."""

    tokens: tuple[Token, ...]
    merges: tuple[str, ...]

    def number(self, text: str) -> int:
        """The number of the token whose bytes are this text."""
        data = text.encode()
        return next(number for number, token in enumerate(self.tokens) if token.data == data)


END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROLS = (END_OF_TEXT, START, END)
CALL, CALL_END = "<tool_call>", "</tool_call>"
ADDED = {CALL: Need.LINE, CALL_END: Need.TURN, "<think>": Need.NOTHING, "</think>": Need.NOTHING}

# Each is merged from its left end, and all that is made on the way is a token too.
WORDS = (
    *(" the", " and", " name", " value", " call", " tool", " city", " time", " user", " answer", " function"),
    *(" hello", " world"),
    *("system", "assistant", "arguments", "\n\n", "  ", '{"', '":', '",', '"}', "```", "</", "\\n", "data:", "null"),
    *("\N{GRINNING FACE}", "\N{PILE OF POO}", "\N{WAVING HAND SIGN}", "\N{EMOJI MODIFIER FITZPATRICK TYPE-3}"),
    *("\N{ZERO WIDTH JOINER}", "\N{VARIATION SELECTOR-16}", "\N{COMBINING ACUTE ACCENT}", "\N{LINE SEPARATOR}"),
    *(
        "中",
        "文字",
        "日本",
        "は",
        "한",
        "é",
        "ñ",
        "ß",
        "Ω",
        "Ж",
        "א",
        "\N{ARABIC LETTER SEEN}",
        "€",
        "\N{NO-BREAK SPACE}",
    ),
)
# The end of one character and the beginning of the next in one token, which many vocabularies have by accident.
SEAMS = (b"\xa9\xc3", b"\xa0\xe4", b"\xbf\xf0\x9f", b"\x81\xaf", b"\xaf\xe2\x80")


@cache
def vocabulary() -> Vocabulary:
    """The one vocabulary of all tiny language models."""
    merges: dict[tuple[bytes, bytes], None] = {}  # a dict for its order
    for word in (*(word.encode() for word in WORDS), *SEAMS):
        for cut in range(1, len(word)):
            merges[word[:cut], word[cut : cut + 1]] = None
    pieces = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
    tokens = [Token(piece, Mark.NORMAL, _before(piece), _after(piece)) for piece in pieces]
    tokens += [Token(text.encode(), Mark.CONTROL) for text in CONTROLS]
    tokens += [Token(text.encode(), Mark.ADDED, after=need) for text, need in ADDED.items()]
    return Vocabulary(tuple(tokens), tuple(f"{spell(left)} {spell(right)}" for left, right in merges))


def spell(data: bytes) -> str:
    """Each byte as one visible character: itself where it is one, else one from U+0100 on, as GPT-2 began it."""
    return "".join(_letters()[byte] for byte in data)


@cache
def _letters() -> tuple[str, ...]:
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in visible else chr(next(others)) for byte in range(256))


def _before(piece: bytes) -> Need:
    first = piece[0]
    if not _is_inner(first):
        return Need.NOTHING
    if first >= 0xA0:
        return Need.LAST
    return Need.PLANE if first == 0x9F else Need.MIDDLE


def _after(piece: bytes) -> Need:
    rest = piece.lstrip(bytes(range(0x80, 0xC0)))
    if not rest:
        return Need(max(_before(piece[-1:]) - 1, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(rest)
    pending = decoder.getstate()[0]
    return Need(_length(pending[0]) - len(pending)) if pending else Need.NOTHING


def _is_inner(byte: int) -> bool:
    return 0x80 <= byte < 0xC0


def _length(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
