"""The check of the public types reports each symbol that is not complete, and no other."""

from tests.table import table
from tools import verify_types


def _symbol(name: str, *, is_exported: bool = True, is_known: bool = False) -> dict[str, object]:
    diagnostics = [
        {"severity": "error", "message": "Type is missing\n\xa0\xa0annotation"},
        {"severity": "warning", "message": "No docstring"},
    ]
    return {"name": name, "isExported": is_exported, "isTypeKnown": is_known, "diagnostics": diagnostics}


@table(
    "symbol, expected",
    [
        (_symbol("welldone.repair"), ["welldone.repair: Type is missing annotation"]),
        (_symbol("welldone.repair", is_known=True), []),
        (_symbol("welldone.library.x._y", is_exported=False), []),
        (_symbol("welldone.cluster.application.app"), []),
        (_symbol("welldone.config.model.engine_setting"), []),
        (_symbol("welldone.config.settings.Setting"), ["welldone.config.settings.Setting: Type is missing annotation"]),
    ],
)
def test_incomplete_symbols_are_listed_with_their_reasons(symbol: dict[str, object], expected: list[str]) -> None:
    assert verify_types.incomplete({"typeCompleteness": {"symbols": [symbol]}}) == expected
