"""Exports the pack as a folder of its own, for `pulumi preview --policy-pack` and `pulumi policy publish`.

The folder holds copies of the rules and of what they import, and needs nothing but pulumi_policy.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainfleet import __version__
from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole

PACKAGE = Path(__file__).parents[2]
"""The installed package, or its folder in a checkout."""
SHARED = ("dates.py", "errors.py", "kubernetes_support.py", "kubernetes_support.toml")
"""What rules import from outside of this package."""
LEFT_OUT = ("cli", "__main__.py", "export.py", "document.py", "scanner_exceptions.py")
"""Parts of the package that only the command line uses."""
COPY = "trainfleet_pack"
"""Name of the package in the folder. It differs from this one, which may be installed as well."""
REQUIREMENTS = ("pulumi>=3.272,<4", "pulumi-policy>=1.21")
MAIN = '''"""Entry point of the policy pack for Pulumi."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pulumi_policy import EnforcementLevel, PolicyPack  # noqa: E402

from trainfleet_pack.policies.engine.pack import policies  # noqa: E402

PolicyPack("trainfleet", policies(), EnforcementLevel.MANDATORY)
'''
PROJECT = """description: What must hold on every GPU training platform, whichever cloud it is on
version: {version}
runtime:
  name: python
  options:
    virtualenv: venv
"""


def export(folder: Path) -> list[Path]:
    """Write the pack into a folder that does not exist or is empty, and return the files.

    Raises:
        InputError: the folder has files, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                "the pack cannot be exported", [Problem(str(folder), "is not empty", "a new folder")]
            )
        files = {
            "PulumiPolicy.yaml": PROJECT.format(version=__version__),
            "__main__.py": MAIN,
            "requirements.txt": "".join(f"{each}\n" for each in REQUIREMENTS),
            ".gitignore": "venv/\n__pycache__/\n",
            f"{COPY}/__init__.py": '"""What the policy pack needs of Trainfleet."""\n',
        }
        files |= {f"{COPY}/{name}": _renamed(PACKAGE / name) for name in SHARED}
        for file in sorted((PACKAGE / "policies").rglob("*.py")):
            path = file.relative_to(PACKAGE)
            if not set(path.parts) & {*LEFT_OUT, "__pycache__"}:
                files[f"{COPY}/{path.as_posix()}"] = _renamed(file)
        written = []
        for name, text in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, text)
            written.append(target)
    except OSError as error:
        problem = Problem(str(folder), error.strerror or str(error))
        raise InputError("the pack cannot be exported", [problem]) from error
    return written


def _renamed(file: Path) -> str:
    """Return a file's text, in which imports name the copy."""
    return re.sub(r"(?m)^(\s*(?:from|import) )trainfleet\b", rf"\1{COPY}", file.read_text(encoding="utf-8"))
