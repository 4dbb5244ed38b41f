"""The limits of file and function length, over samples and over the whole tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.limits import FILE_LINES, FUNCTION_LINES, ROOT, files, too_long, undocumented


def function(lines: int, keyword: str = "def") -> str:
    """A function of this many lines."""
    return f"{keyword} work():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (function(FUNCTION_LINES), []),
        (function(FUNCTION_LINES + 1), ["1: work has 61 lines (at most 60)"]),
        (function(FUNCTION_LINES + 1, "async def"), ["1: work has 61 lines (at most 60)"]),
        ("class A:\n" + "    pass\n" * (FILE_LINES - 1), []),
        ("x = 1\n" * (FILE_LINES + 1), ["401 lines (at most 400)"]),
    ],
)
def test_an_excess_is_reported_with_its_line(text: str, expected: list[str], tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(text, encoding="utf-8")
    assert list(too_long(file)) == expected


@pytest.mark.parametrize(
    ("name", "docstring", "reported"),
    [("many", "Text.", 1), ("many", "Text.\n\n    Args:\n        a: one.\n    ", 0), ("_many", "Text.", 0)],
)
def test_public_functions_with_many_parameters_describe_them(
    name: str, docstring: str, reported: int, tmp_path: Path
) -> None:
    file = tmp_path / "module.py"
    file.write_text(f'def {name}(a, b, c, d, *, e, f):\n    """{docstring}"""\n', encoding="utf-8")
    assert len(list(undocumented(file))) == reported


def test_the_tree_is_within_the_limits() -> None:
    checked = files()
    assert ROOT / "tools" / "limits.py" in checked
    assert [f"{file.relative_to(ROOT)}:{each}" for file in checked for each in too_long(file)] == []
    assert [f"{file.relative_to(ROOT)}:{each}" for file in checked for each in undocumented(file)] == []
