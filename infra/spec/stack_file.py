"""Read a stack file (Pulumi.<env>.yaml) with the line of every key, so that a mistake is reported at its
place.

YAML accepts a repeated key and silently uses the last one; here it is an error.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.pydantic_messages import Path as KeyPath
from trainfleet.pydantic_messages import annotation_at, path_text, shown
from trainfleet.suggestions import nearest
from trainfleet.yaml_limits import TooLargeError, check_limits, only_yaml_errors

PLATFORM_KEY = "trainfleet:platform"
PLATFORM_PATH: KeyPath = ("config", PLATFORM_KEY)

_SHALLOW = "a platform is nested at most six levels deep: look for unclosed brackets"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class StackFile:
    """A stack file. `lines` maps each path from the root of the document to its line."""

    shown_as: str
    path: Path
    document: dict[str, Any]
    lines: dict[KeyPath, int]

    def locate(self, path: KeyPath) -> str:
        """`file:line` of a path, or of its nearest ancestor in the file."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return f"{self.shown_as}:{self.lines[path[:length]]}"
        return self.shown_as


def project_root() -> Path:
    """The current project: the nearest folder above with a Pulumi.yaml and stacks, else the nearest one with
    a Pulumi.yaml, else Trainfleet's own checkout.
    """
    here = Path.cwd()
    projects = [folder for folder in (here, *here.parents) if (folder / "Pulumi.yaml").is_file()]
    own = Path(__file__).resolve().parents[2]
    return next((folder for folder in projects if (folder / "stacks").is_dir()), next(iter(projects), own))


def stack_names(root: Path) -> list[str]:
    """The stacks that have a file, in alphabetical order."""
    return sorted(
        file.name.removeprefix("Pulumi.").removesuffix(".yaml")
        for file in (root / "stacks").glob("Pulumi.?*.yaml")
    )


def read_stack(stack: str, root: Path) -> StackFile:
    """Read the file of a stack, given by its name (`aws-dev`, `org/project/aws-dev`) or by the path of the
    file.

    Raises:
        InputError: no such stack (with the nearest name), an unreadable file, or invalid YAML.
    """
    if stack.endswith((".yaml", ".yml")):
        return read_stack_file(Path(stack))
    name = stack.rsplit("/", maxsplit=1)[-1]
    names = stack_names(root)
    if name not in names:
        match = nearest(name, names)
        offered = (
            f"available: {', '.join(names)}" if names else f"write {root / 'stacks' / f'Pulumi.{name}.yaml'}"
        )
        raise InputError(
            "unknown stack",
            [
                Problem(
                    stack, "has no settings file in stacks/", f"did you mean `{match}`?" if match else offered
                )
            ],
        )
    return read_stack_file(root / "stacks" / f"Pulumi.{name}.yaml")


def read_stack_file(file: Path) -> StackFile:
    """Read one stack file.

    Raises:
        InputError: it cannot be read, is not YAML or not a mapping, or has a duplicate key.
    """
    shown_as = shown_path(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            "cannot read a stack file", [Problem(shown_as, error.strerror or str(error))]
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("cannot read a stack file", [Problem(shown_as, "is not UTF-8 text")]) from error
    try:
        with only_yaml_errors():
            check_limits(text)
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
                lines, twice = _lines(node, shown_as)
                document = loader.construct_document(node) if node is not None else None
            finally:
                loader.dispose()
    except TooLargeError as error:
        where = f"{shown_as}:{error.problem_mark.line + 1}" if error.problem_mark else shown_as
        raise InputError(
            "cannot read a stack file", [Problem(where, str(error.problem), _SHALLOW)]
        ) from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        column = f", column {error.problem_mark.column + 1}" if error.problem_mark else ""
        problem = Problem(f"{shown_as}{line}", f"is not YAML: {error.problem or error.context}{column}")
        raise InputError("cannot read a stack file", [problem]) from error
    except yaml.YAMLError as error:
        raise InputError(
            "cannot read a stack file", [Problem(shown_as, f"is not YAML: {' '.join(str(error).split())}")]
        ) from error
    if twice:
        raise InputError("a key is repeated", twice)
    if not isinstance(document, dict):
        raise InputError(
            "cannot read a stack file",
            [
                Problem(
                    shown_as,
                    "is empty" if document is None else "is not a group of keys",
                    "start it with `config:`",
                )
            ],
        )
    return StackFile(shown_as, file, document, lines)


def override(
    platform: Mapping[str, Any], settings: Sequence[str]
) -> tuple[dict[str, Any], tuple[KeyPath, ...]]:
    """Apply settings like `gpu_pools[0].max_nodes=3`. Returns the platform and the paths that changed.

    Raises:
        InputError: a setting that is not `path=value`, or whose path does not exist.
    """
    changed = copy.deepcopy(dict(platform))
    paths: list[KeyPath] = []
    problems: list[Problem] = []
    for setting in settings:
        written, equals, value = setting.partition("=")
        path = _steps(written.strip())
        if not equals or not path:
            problems.append(
                Problem(f"--set {setting}", "is not path=value", "write it like gpu_pools[0].max_nodes=3")
            )
        elif what := _put(changed, path, _value(path, value)):
            problems.append(Problem(f"--set {setting}", what))
        else:
            paths.append(path)
    if problems:
        raise InputError("a setting cannot be used", problems)
    return changed, tuple(paths)


def _steps(written: str) -> KeyPath:
    """`a.b[0].c` as ("a", "b", 0, "c"); empty when it is not a path."""
    if not re.fullmatch(r"""[\w:/-]+(\.[\w:/-]+|\[\d+\]|\["[^"]+"\])*""", written):
        return ()
    found = re.findall(r"""\[(\d+)\]|\["([^"]+)"\]|([\w:/-]+)""", written)
    return tuple(int(index) if index else quoted or plain for index, quoted, plain in found)


def _value(path: KeyPath, text: str) -> Any:
    """The value as YAML reads it, except for text fields, where `1.34` stays text."""
    if annotation_at(PlatformSpec, path) is str:
        return text
    try:
        return yaml_limits.load(text)
    except yaml.YAMLError:
        return text


def _put(document: dict[str, Any], path: KeyPath, value: Any) -> str:
    """Set `value` at `path`. Returns a problem, or an empty string."""
    place: Any = document
    for position, step in enumerate(path):
        written = path_text(path[:position]) or "the platform"
        last = position == len(path) - 1
        if isinstance(step, int):
            if not isinstance(place, list):
                return f"{written} is not a list"
            if step >= len(place):
                return f"{written} has {len(place)} entries; the first is [0]"
        elif not isinstance(place, dict):
            return f"{written} is {shown(place)}, not a group of keys"
        if last:
            place[step] = value
        else:
            if isinstance(step, str) and place.get(step) is None:
                place[step] = [] if isinstance(path[position + 1], int) else {}
            place = place[step]
    return ""


def _lines(root: yaml.Node | None, shown_as: str) -> tuple[dict[KeyPath, int], list[Problem]]:
    """The line of every path, and repeated keys. An alias is followed once, so a loop ends."""
    lines: dict[KeyPath, int] = {}
    twice: list[Problem] = []
    seen: set[int] = set()

    def walk(node: yaml.Node, path: KeyPath) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            own: set[str] = set()
            for key, value in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else ""
                line = key.start_mark.line + 1
                below = (*path, name)
                if name in own and name != "<<":
                    twice.append(
                        Problem(
                            f"{shown_as}:{line} {path_text(_in_platform(below))}",
                            f"is repeated, first in line {lines[below]}",
                            "keep one",
                        )
                    )
                else:
                    lines[below] = line
                own.add(name)
                walk(value, below)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines[*path, index] = value.start_mark.line + 1
                walk(value, (*path, index))

    if root is not None:
        walk(root, ())
    return lines, twice


def _in_platform(path: KeyPath) -> KeyPath:
    return path[2:] if path[:2] == PLATFORM_PATH and len(path) > 2 else path


def shown_path(file: Path) -> str:
    """The path relative to the current folder, or the full path outside it."""
    relative = os.path.relpath(file)
    return str(file) if relative.startswith("..") else relative
