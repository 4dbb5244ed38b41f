"""Checks that files stay below 400 lines and functions below 60, and that public functions with six or more
parameters document them: `python -m tools.limits`.

Tables of test cases and generated data are exempt, by path, with a reason.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 400
FUNCTION_LINES = 60
DOCUMENTED_PARAMETERS = 6
EXEMPT = {
    "tests/infra/rule_cases.py": "a table of cases",
    "tests/policies/cases/": "tables of cases",
    "tests/rehearsal/mistakes/": "tables of cases",
}


def files() -> list[Path]:
    """The Python files that git tracks or does not ignore."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file() and not name.startswith(tuple(EXEMPT))]


def too_long(file: Path) -> Iterator[str]:
    """One line for the file and for each of its functions that exceeds its limit."""
    text = file.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{lines} lines (at most {FILE_LINES})"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{node.lineno}: {node.name} has {length} lines (at most {FUNCTION_LINES})"


def undocumented(file: Path) -> Iterator[str]:
    """One line for each public function whose docstring should describe its parameters and does not.

    Commands describe theirs in `--help`, tests need not, and an override has its base class's description.
    """
    path = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    if path.parts[0] == "tests" or "cli" in path.parts:
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        given = node.args
        names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)} - {"self", "cls"}
        text = ast.get_docstring(node)
        if len(names) >= DOCUMENTED_PARAMETERS and text is not None and "Args:" not in text:
            yield f"{node.lineno}: {node.name} has {len(names)} parameters and no `Args:` section"


def main() -> int:
    """Print every excess. Returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m tools.limits", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args()
    found = [
        f"{file.relative_to(ROOT)}:{each}"
        for file in files()
        for each in (*too_long(file), *undocumented(file))
    ]
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
