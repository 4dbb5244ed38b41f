"""The folder of one rehearsal (engine home, state, copied settings) and its environment (see environment.py).

The user's files are never modified: the engine adds an encryption salt to the stack settings, so it works on
a copy.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.engine.environment import Access, environment


@dataclass(frozen=True)
class Project:
    """A Pulumi program on disk: root folder, parsed Pulumi.yaml, program (`main`) and stack settings file."""

    root: Path
    name: str
    document: dict[str, Any]
    main: Path
    settings: Path | None
    stack: str

    @property
    def checkout(self) -> Path:
        """The folder whose code and policies the program uses: that of the project around it if it is below
        that project's `stacks` or in its `bootstrap`, as bootstraps are, else its own.
        """
        around = (
            each
            for each in self.root.parents
            if self.root.is_relative_to(each / "stacks") or self.root == each / "bootstrap"
        )
        return next((each for each in around if (each / "Pulumi.yaml").is_file()), self.root)


@dataclass(frozen=True)
class Sandbox:
    """The folder of one rehearsal, deleted at the end unless it is kept."""

    folder: Path
    project: Path
    environment: dict[str, str]
    secret_keys: list[str]
    stack: str

    @property
    def state(self) -> Path:
        """The engine's state file of the stack."""
        found = sorted((self.folder / "state").rglob(f"stacks/**/{self.stack}.json"))
        return found[0] if found else self.folder / "state" / "none.json"

    def file(self, name: str) -> Path:
        """Return a path in the folder."""
        return self.folder / name


def read_project(root: Path, stack: str = "") -> Project:
    """Read Pulumi.yaml and find the stack settings.

    Raises:
        InputError: Pulumi.yaml is missing, is not YAML or is not for Python, or the stack does not exist.
    """
    file = next((root / name for name in ("Pulumi.yaml", "Pulumi.yml") if (root / name).is_file()), None)
    if file is None:
        raise InputError(
            "not a Pulumi program",
            [
                Problem(
                    str(root), "has no Pulumi.yaml", "name a folder that has one, or a stack of this project"
                )
            ],
        )
    document = _yaml(file)
    runtime = document.get("runtime")
    language = runtime.get("name") if isinstance(runtime, dict) else runtime
    if language != "python":
        raise InputError(
            "only Python programs can be rehearsed",
            [Problem(f"{file}: runtime", f"is {language!r}", "runtime: python")],
        )
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(
            "the project has no name", [Problem(f"{file}: name", "is missing", "name: my-project")]
        )
    main = root / str(document.get("main") or ".")
    if not main.exists():
        raise InputError(
            "the project's program is missing", [Problem(f"{file}: main", f"{main} does not exist")]
        )
    folder = (
        root / str(document.get("stackConfigDir") or document.get("config") or ".")
        if isinstance(document.get("stackConfigDir"), str)
        else root
    )
    stacks = {
        path.name.removeprefix("Pulumi.").removesuffix(path.suffix): path
        for path in sorted(folder.glob("Pulumi.*.y*ml"))
    }
    if stack and stack not in stacks:
        from trainfleet.suggestions import did_you_mean

        raise InputError(
            "unknown stack",
            [Problem(stack, f"has no settings file in {folder}", did_you_mean(stack, stacks))],
        )
    chosen = stack or (next(iter(stacks)) if stacks else "rehearsal")
    return Project(root, name, document, main.resolve(), stacks.get(chosen), chosen)


@contextlib.contextmanager
def sandbox(
    project: Project,
    settings: dict[str, Any] | None = None,
    *,
    keep: Path | None = None,
    access: Access = Access(),
) -> Iterator[Sandbox]:
    """Create the folder of a rehearsal and delete it at the end, also after Ctrl-C.

    With `keep`, create it in that folder and do not delete it. `access` is what the program may reach.

    Raises:
        InputError: the folder cannot be created (disk full, read-only), or a variable cannot be passed.
    """
    folder = Path()
    try:
        try:
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="trainfleet-rehearsal-", dir=keep))
            made = _fill(folder, project, settings, access)
        except OSError as error:
            raise unwritable(error, keep or Path(tempfile.gettempdir())) from error
        yield made
    finally:
        if keep is None and folder != Path():
            with uninterrupted():
                shutil.rmtree(folder, ignore_errors=True)


def unwritable(error: OSError, folder: Path) -> InputError:
    """Return the error for a folder that is not writable."""
    return InputError(
        "the rehearsal has nowhere to write",
        [
            Problem(
                str(error.filename or folder),
                error.strerror or str(error),
                "free some space, or name another folder in TMPDIR",
            )
        ],
    )


def _fill(folder: Path, project: Project, settings: dict[str, Any] | None, access: Access) -> Sandbox:
    for name in ("home", "state", "project", "bin", "tmp"):
        (folder / name).mkdir()
    copy = {
        key: value
        for key, value in project.document.items()
        if key not in ("stackConfigDir", "backend", "config", "plugins")
    }
    copy["main"] = str(project.main)
    copy["runtime"] = {"name": "python"}
    (folder / "project" / "Pulumi.yaml").write_text(yaml.safe_dump(copy))
    document = settings if settings is not None else (_yaml(project.settings) if project.settings else {})
    config, secret_keys = _without_ciphertext(document.get("config") or {})
    defaults = {
        key: value["default"]
        for key, value in (project.document.get("config") or {}).items()
        if isinstance(value, dict) and "default" in value
    }
    (folder / "project" / f"Pulumi.{project.stack}.yaml").write_text(
        yaml.safe_dump({"config": {**defaults, **config}})
    )
    shim = folder / "bin" / "pulumi-analyzer-policy-python"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -u -m trainfleet.rehearsal.engine.analyzer "$@"\n')
    shim.chmod(0o755)
    return Sandbox(folder, folder / "project", environment(folder, access), secret_keys, project.stack)


def _without_ciphertext(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    result, keys = {}, []
    for key, value in config.items():
        if isinstance(value, dict) and set(value) == {"secure"}:
            keys.append(key)
            result[key] = f"rehearsal-{key.replace(':', '-')}"
        else:
            result[key] = value
    return result, keys


def _yaml(file: Path) -> dict[str, Any]:
    try:
        document = yaml_limits.load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            "a file cannot be read", [Problem(str(file), str(error).replace("\n", " "))]
        ) from error
    return document if isinstance(document, dict) else {}


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT inside the block, so that a second Ctrl-C cannot interrupt the cleanup."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which is the only one to receive signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
