"""One test for many small cases, such as all vectors of a folder: pytest would take longer than the cases themselves."""

from __future__ import annotations

import functools
import inspect
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SHOWN = 5
"""How many failures are shown with their tracebacks; all are named."""


def for_each(
    parameter: str, cases: Iterable[object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but as one test, which runs all cases and then names every one that failed.

    Each case has an empty `tmp_path` of its own. A case cannot be skipped: leave it out of `cases`.

    Args:
        parameter: Which parameter of the test gets the case.
        cases: Paths, which are named by their stems, or strings.
    """
    every = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(*args: Any, **fixtures: Any) -> None:  # noqa: ANN401 - whatever the test takes
            assert every, "there is no case"
            folder: Path | None = fixtures.get("tmp_path")
            failed: dict[str, str] = {}
            for number, case in enumerate(every):
                if folder is not None:
                    fixtures["tmp_path"] = folder / str(number)
                    fixtures["tmp_path"].mkdir()
                try:
                    test(*args, **{parameter: case}, **fixtures)
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - told below
                    name = case.stem if isinstance(case, Path) else str(case)
                    failed[name] = "".join(traceback.format_exception(error))
            if failed:
                shown = "\n".join(f"{name}:\n{how}" for name, how in list(failed.items())[:_SHOWN])
                pytest.fail(
                    f"{len(failed)} of {len(every)} cases failed: {', '.join(failed)}\n\n{shown}",
                    pytrace=False,
                )

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name != parameter]
        assert len(others) < len(signature.parameters), f"the test has no parameter {parameter}"
        run_all.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined] # pytest reads it
        return run_all

    return decorate
