"""Table-driven tests: one test for many rows that take the same branch and differ only in their values."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., None])
Rows = Iterable[Any] | Callable[[], Iterable[Any]]
"""A function is called when the test runs."""
Ids = Callable[[Any], object] | Iterable[object] | None


def table(names: str | Sequence[str], rows: Rows, *, ids: Ids = None) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but one test that runs all rows and reports all failures.

    A separate pytest item costs more time than most rows. Fixtures are shared by all rows, except `tmp_path`, which is
    a new folder for each.
    """
    labels = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    stored = list(rows) if isinstance(rows, Iterable) else rows
    row_ids = ids if callable(ids) or ids is None else list(ids)

    def decorate(test: Test) -> Test:
        def run(**fixtures: Any) -> None:  # noqa: ANN401 - any fixtures
            all_rows = stored if isinstance(stored, list) else list(stored())
            assert all_rows, "the table has no rows"
            errors = []
            for number, row in enumerate(all_rows):
                values, name = _read(row, number, row_ids, is_single=len(labels) == 1)
                try:
                    test(**_for_row(number, fixtures), **dict(zip(labels, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - all are raised at the end
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
    """Values and name of a row."""
    param = row if hasattr(row, "values") and hasattr(row, "marks") else None  # made by pytest.param
    assert param is None or not param.marks, "a row cannot have marks"
    values: Sequence[Any] = param.values if param is not None else ((row,) if is_single else row)
    if param is not None and param.id is not None:
        return values, param.id
    if callable(ids):
        return values, [ids(value) for value in values]
    return values, ids[number] if ids is not None else values
