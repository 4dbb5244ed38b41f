"""Shell completion of names: recipes, platforms and runs. Reads folder listings only, and imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

RUNS = Path("runs")
PULUMI = "Pulumi."


def recipes(incomplete: str) -> list[str]:
    """The included recipes, the YAML files of this folder and of `recipes/`."""
    included = Path(__file__).parent / "recipes"
    names = [path.stem for path in included.glob("*.yaml")]
    return _matching(incomplete, [*names, *_files(incomplete, "*.yaml"), *_files("recipes/", "*.yaml")])


def stacks(incomplete: str) -> list[str]:
    """The files with outputs of this folder, and the Pulumi stacks of this folder and of `stacks/`."""
    folders = (Path(), Path("stacks"))
    names = [
        path.name.removeprefix(PULUMI).removesuffix(".yaml")
        for folder in folders
        for path in folder.glob(f"{PULUMI}*.yaml")
    ]
    return _matching(incomplete, [*_files(incomplete, "*.json"), *names])


def run_names(incomplete: str) -> list[str]:
    """The runs in `runs/`, by name."""
    return _matching(incomplete, (path.name for path in _runs()))


def run_folders(incomplete: str) -> list[str]:
    """The runs in `runs/`, by folder."""
    return _matching(incomplete, (str(path) for path in _runs()))


def _runs() -> Iterator[Path]:
    return (path.parent for path in RUNS.glob("*/run.json"))


def _files(incomplete: str, pattern: str) -> Iterator[str]:
    """The matching files in the folder that `incomplete` names."""
    folder = Path(incomplete.rpartition("/")[0] or ".")
    return (str(path) for path in folder.glob(pattern) if not path.name.startswith(PULUMI))


def _matching(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
