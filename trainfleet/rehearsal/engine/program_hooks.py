"""What a rehearsal changes in the Pulumi SDK before a program runs: one run finds all that is missing.

`program.py` loads this file by path: it imports the standard library and `pulumi` only.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORGANIZATION = "organization"
"""The only organization that the engine's file backend has."""
OUTPUTS = "__rehearsal_outputs"
"""The input of a dynamic resource that names the outputs which its provider computes."""
_PLACEHOLDERS = {"bool": False, "int": 1, "float": 1.0, "object": {}}
missing_settings: dict[str, dict[str, Any]] = {}
"""The settings that the program required and that the stack does not have, by key."""


def collect_missing_settings(root: Path) -> None:
    """Let `Config.require*` return a placeholder for a missing setting and note it."""
    import pulumi
    from pulumi.config import ConfigMissingError

    def hooked(real: Callable[..., Any], kind: str, *, secret: bool) -> Callable[..., Any]:
        @functools.wraps(real)
        def require(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return real(self, key, *args, **kwargs)
            except ConfigMissingError:
                missing_settings.setdefault(
                    self.full_key(key), {"secret": secret, "kind": kind, "where": _where(root)}
                )
                value = _PLACEHOLDERS.get(kind, "placeholder")
                return pulumi.Output.secret(value) if secret else value

        return require

    for name in [name for name in vars(pulumi.Config) if name.startswith("require")]:
        kind = name.rsplit("_", 1)[-1]
        setattr(
            pulumi.Config,
            name,
            hooked(getattr(pulumi.Config, name), kind, secret="secret" in name.split("_")),
        )


def _where(root: Path) -> str:
    frame: Any = sys._getframe(2)
    while frame is not None and "site-packages" in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return ""
    file = Path(frame.f_code.co_filename)
    return f"{file.relative_to(root) if file.is_relative_to(root) else file.name}:{frame.f_lineno}"


def missing_settings_failure() -> dict[str, str] | None:
    """Return the failure that names every missing setting, or None."""
    if not missing_settings:
        return None
    return {"kind": "MissingSettings", "message": json.dumps(missing_settings), "where": ""}


def refer_to_stacks(project: str, file: Path | None) -> None:
    """Let a StackReference read the simulated backend; write the stack's name to `file`, one a line."""
    import pulumi

    real = pulumi.StackReference.__init__

    def hooked(self: Any, name: str, stack_name: Any = None, opts: Any = None) -> None:
        target = name if stack_name is None else stack_name
        if isinstance(target, pulumi.Output):
            real(self, name, target.apply(found), opts)  # type: ignore[arg-type] # an Output works too
        else:
            real(self, name, found(target), opts)

    def found(target: str) -> str:
        if file is not None:
            with file.open("a") as lines:
                lines.write(f"{target}\n")
        return full_name(target, project)

    pulumi.StackReference.__init__ = hooked  # type: ignore[method-assign] # the SDK has no hook for reads


def full_name(target: str, project: str) -> str:
    """Return the simulated backend's name of `stack`, `project/stack` or `organization/project/stack`."""
    parts = target.split("/")
    return "/".join([ORGANIZATION, *([project] if len(parts) == 1 else []), *parts[-2:]])


def know_ids_of_reads(monitor: Any) -> None:
    """Complete the id of a resource that the program reads by id.

    An SDK may expect it in the engine's answer (3.272 does), and an older engine (3.200) does not send it.
    The SDK then takes the id for unknown in a preview, which would replace what depends on it.
    """
    real = monitor.ReadResource

    def hooked(request: Any, *args: Any, **kwargs: Any) -> Any:
        answer = real(request, *args, **kwargs)
        if "id" in answer.DESCRIPTOR.fields_by_name and not answer.id:
            answer.id = request.id
        return answer

    monitor.ReadResource = hooked


def name_outputs_of_dynamic_resources() -> None:
    """Pass the names of the outputs that a dynamic provider computes, which a program gives as None."""
    from pulumi import dynamic

    real = dynamic.Resource.__init__

    @functools.wraps(real)
    def hooked(self: Any, provider: Any, name: str, props: Any, opts: Any = None) -> None:
        computed = sorted(key for key, value in props.items() if value is None)
        real(self, provider, name, {**props, OUTPUTS: computed}, opts)

    dynamic.Resource.__init__ = hooked  # type: ignore[method-assign] # the SDK has no hook for it


def missing_packages(program: Path) -> list[str]:
    """Return the modules that the program's files import and that are not installed."""
    folder = program if program.is_dir() else program.parent
    files = [file for file in sorted(folder.rglob("*.py")) if not _is_foreign(file.relative_to(folder))]
    local = {file.stem for file in files} | {
        part for file in files for part in file.relative_to(folder).parts[:-1]
    }
    names: dict[str, None] = {}
    for file in files:
        try:
            tree = ast.parse(file.read_text())
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0]: None for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names[node.module.split(".")[0]] = None
    return [name for name in names if name not in local and not _is_installed(name)]


def _is_foreign(path: Path) -> bool:
    return bool(
        re.search(r"(^|/)(\.?venv|env|node_modules|site-packages|tests?|\.[^/]+)(/|$)", path.as_posix())
    )


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
