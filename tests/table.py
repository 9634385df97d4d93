"""Tests over tables: one test for many rows that take the same way and differ only in their values."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., None])
Rows = Iterable[Any] | Callable[[], Iterable[Any]]
"""A function makes them when the test runs."""
Ids = Callable[[Any], object] | Iterable[object] | None


def table(names: str | Sequence[str], rows: Rows, *, ids: Ids = None) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, but one test: it tries all rows and fails with those that fail.

    A case of its own costs pytest more than most rows take. Fixtures are made once, for all rows; only `tmp_path` is a
    new folder for each.
    """
    labels = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    kept = list(rows) if isinstance(rows, Iterable) else rows
    named = ids if callable(ids) or ids is None else list(ids)

    def decorate(test: Test) -> Test:
        def run(**fixtures: Any) -> None:  # noqa: ANN401 - any fixtures
            all_rows = kept if isinstance(kept, list) else list(kept())
            assert all_rows, "a table has rows"
            errors = []
            for number, row in enumerate(all_rows):
                values, name = _read(row, number, named, is_single=len(labels) == 1)
                try:
                    test(**_for_row(number, fixtures), **dict(zip(labels, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - each is shown at the end
                    error.add_note(f"row {number}: {name}")
                    errors.append(error)
            if errors:
                raise ExceptionGroup(f"{len(errors)} of {len(all_rows)} rows", errors)

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in labels]
        assert len(others) + len(labels) == len(signature.parameters), f"{labels} are not arguments of {test.__name__}"
        run.__name__, run.__qualname__, run.__module__ = test.__name__, test.__qualname__, test.__module__
        run.__doc__, run.__dict__ = test.__doc__, {**test.__dict__}
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate


def _for_row(number: int, fixtures: dict[str, Any]) -> dict[str, Any]:
    if "tmp_path" not in fixtures:
        return fixtures
    folder = fixtures["tmp_path"] / str(number)
    folder.mkdir()
    return {**fixtures, "tmp_path": folder}


def _read(
    row: Any,  # noqa: ANN401 - any values
    number: int,
    ids: Callable[[Any], object] | Sequence[object] | None,
    *,
    is_single: bool,
) -> tuple[Sequence[Any], object]:
    """The values of a row, and its name."""
    marked = row if hasattr(row, "values") and hasattr(row, "marks") else None  # of pytest.param
    assert marked is None or not marked.marks, "a row has no marks"
    values: Sequence[Any] = marked.values if marked is not None else ((row,) if is_single else row)
    if marked is not None and marked.id is not None:
        return values, marked.id
    if callable(ids):
        return values, [ids(value) for value in values]
    return values, ids[number] if ids is not None else values
