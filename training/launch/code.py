"""The user's code of a launch: which folder it is, its archive, and what changed since the run's last launch.

`trainfleet.training.runtime.code_archive` is the other half, in the processes that train.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.ignore_rules import IgnoreRules, rules_above
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import code_archive
from trainfleet.training.runtime.code_archive import MAX_BYTES, MAX_FILES, CodeFile
from trainfleet.training.stores import Store, is_remote, open_store

KEY = "code"
"""What `--allow-change` calls it, and its key in run.json."""
SHOWN = 5
"""How many files a message names."""


class CodeRequest(Protocol):
    """The part of a request that decides its code."""

    @property
    def code(self) -> str | None: ...

    @property
    def launched_code(self) -> str | None: ...


@dataclass(frozen=True)
class Code:
    """The code of a launch: an archive in the run's storage, or a folder that is used as it is."""

    folder: Path | None
    """None: the code of a run that was launched before."""
    url: str
    digest: str = ""
    files: int = 0
    data: bytes = field(default=b"", repr=False)
    """The archive."""

    def facts(self) -> dict[str, Any]:
        """What run.json keeps."""
        return {"folder": str(self.folder or ""), "digest": self.digest, "files": self.files}

    def upload(self) -> bool:
        """Store the archive with the run, unless it exists; whether it was stored now.

        Raises:
            StoreError: all attempts failed.
        """
        if not self.data:
            return False
        store, path = self._store(), code_archive.archive_path(self.digest)
        # The size too: on Azure a write that was interrupted leaves an empty file.
        if store.sizes(code_archive.STORED).get(path) == len(self.data):
            return False
        store.put(path, self.data)
        return True

    def remove(self) -> None:
        """Remove the archive of a run that was not started.

        Raises:
            StoreError: all attempts failed.
        """
        self._store().remove([code_archive.archive_path(self.digest)])

    def _store(self) -> Store:
        return open_store(self.url.removesuffix(f"/{code_archive.archive_path(self.digest)}"))


def folder_of(given: str | None, recipe: str, overrides: Sequence[str]) -> Path | None:
    """The folder with the code: that of `--code`, or the recipe's if its workload is a file there.

    Raises:
        InputError: `--code` is not a folder.
    """
    if given is not None:
        if not Path(given).is_dir():
            what = "is not a folder" if Path(given).exists() else "does not exist"
            raise InputError("no code to launch", [Problem(f"--code {given}", what)])
        return Path(given).resolve()
    folder, module = Path(recipe).resolve().parent, _module_of(recipe, overrides)
    if module and any(path.is_file() for path in _files_of(folder, module)):
        return folder
    return None


def code_of(
    request: CodeRequest, recipe: Recipe, folder: Path | None, *, remote: bool
) -> tuple[Code | None, str]:
    """The code of a launch, and a warning about it or nothing.

    A folder that was not named with `--code` and cannot be archived is used as it is on this machine.

    Raises:
        InputError: the folder cannot be archived.
    """
    if request.launched_code is not None:
        return stored(request.launched_code), ""
    missing = not_shipped(recipe.workload.name, folder) if remote else ""
    if folder is None:
        return None, missing
    run_dir = recipe.run_dir().absolute()
    home = recipe.home_url() if is_remote(recipe.storage) else str(run_dir)
    try:
        return packed(folder, home, (run_dir.resolve(), run_dir.parent.resolve())), missing
    except InputError as error:
        if remote or request.code is not None:
            raise
        reason = "; ".join(map(str, error.problems[:1]))
        return Code(folder, str(folder)), f"the run's code is not recorded: {reason}"


def import_first(folder: Path | None) -> None:
    """Have this process import from the folder too: it validates the recipe with the workload's settings."""
    if folder is not None:
        code_archive.use(str(folder))


def packed(folder: Path, home: str, without: tuple[Path, ...] = ()) -> Code:
    """The code in `folder`, to be stored in the run's folder or store `home`.

    Args:
        folder: the folder; its ignored files are left out.
        home: where the run is stored.
        without: folders that are not code, such as the one with the runs.

    Raises:
        InputError: it is too large, or holds what cannot be archived: all of it.
    """
    try:
        paths = _listed(folder, without)
    except OSError as error:
        where = os.path.relpath(error.filename or folder, folder)
        raise _unfit(folder, [Problem(where, error.strerror or str(error), _IGNORE)]) from error
    files = {}
    for name, path in paths.items():
        try:
            files[name] = CodeFile(path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
        except OSError as error:
            raise _unfit(folder, [Problem(name, error.strerror or str(error), _IGNORE)]) from error
    digest, data = code_archive.pack(files)
    return Code(folder, f"{home.rstrip('/')}/{code_archive.archive_path(digest)}", digest, len(files), data)


def stored(url: str) -> Code:
    """The code of a run that was launched before."""
    return Code(None, url, code_archive.digest_of(url))


def not_shipped(workload: str, folder: Path | None) -> str:
    """A warning if a workload is a file of this machine that the launch does not bring along; else empty."""
    module = sys.modules.get(workload.partition(":")[0]) if ":" in workload else None
    file = Path(getattr(module, "__file__", None) or "")
    here = Path.cwd()
    if not file.is_file() or "site-packages" in file.parts or not file.is_relative_to(here):
        return ""
    if folder is not None and file.resolve().is_relative_to(folder):
        return ""
    return f"{file} is not part of what is launched: the image must have it (--code {here} brings it along)"


def changes(before: Mapping[str, Any], code: Code | None, recipe: str) -> list[str]:
    """How the code differs from that of the run's last launch, as `spirals.py: changed`.

    Changes of the recipe's own file are left out: its keys are compared one by one.
    """
    last = last_digest(before)
    if code is None or code.folder is None or not code.data or last in ("", code.digest):
        return []
    home = code.url.removesuffix(code_archive.archive_path(code.digest))
    try:
        old = code_archive.fetch(home + code_archive.archive_path(last))
    except TrainfleetError:
        return [f"{last[:12]}, now {code.digest[:12]}: the earlier archive cannot be read"]
    new = code_archive.read(code.data, code.digest)
    own = Path(recipe).resolve()
    found = [
        f"{name}: {'added' if name not in old else 'removed' if name not in new else 'changed'}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and (code.folder / name).resolve() != own
    ]
    return [*found[:SHOWN], f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else found


def resumed_with(changed: Sequence[str]) -> str:
    """The warning for a run that resumes with changed code; nothing if it did not change."""
    return f"the code has changed since the run's last launch: {', '.join(changed)}" if changed else ""


def require_unchanged(run_dir: Path, changed: Sequence[str], allowed: Sequence[str]) -> None:
    """Reject changed code for a finished run: "nothing to do" would pass for its result.

    Raises:
        InputError: the code differs, and `allowed` does not contain KEY.
    """
    if changed and KEY not in allowed:
        fix = f"restore it, train with --run NAME or --fresh, or use --allow-change {KEY}"
        problems = [Problem(KEY, text, fix) for text in changed]
        raise InputError(f"{run_dir} is finished, and was trained with other code", problems)


_IGNORE = "list it in .trainfleetignore"


def last_digest(before: Mapping[str, Any]) -> str:
    """The digest of the code that a run used last: that of its last start, else of its last launch; empty if
    it used none, or its code was not archived.
    """
    started = [each["code"] for each in before.get("starts", []) if each.get("code")]
    launched = [each[KEY]["digest"] for each in before.get("launches", []) if each.get(KEY)]
    return str((started or [each for each in launched if each] or [""])[-1])


def _module_of(recipe: str, overrides: Sequence[str]) -> str:
    """The module of the recipe's workload; empty if it names none. The recipe is validated later."""
    try:
        document = yaml_limits.load(Path(recipe).read_text(encoding="utf-8"))
        workload = document["workload"]["name"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return ""
    for override in overrides:
        key, _, value = override.partition("=")
        workload = value.strip("\"' ") if key.strip() == "workload.name" else workload
    return str(workload).partition(":")[0] if ":" in str(workload) else ""


def _files_of(folder: Path, module: str) -> tuple[Path, Path]:
    """The files that would be imported as `module` from a folder."""
    path = folder.joinpath(*module.split("."))
    return path.with_name(f"{path.name}.py"), path / "__init__.py"


def _listed(folder: Path, without: tuple[Path, ...]) -> dict[str, Path]:
    """The files of an archive by their path in it."""
    rules, base = rules_above(folder)
    listing = _Listing(folder, without)
    listing.add(folder, "", base, rules, (folder,))
    if listing.problems:
        raise _unfit(folder, listing.problems)
    if not listing.paths:
        raise _unfit(folder, [Problem(str(folder), "has no files, or all of them are ignored")])
    sizes = {name: path.stat().st_size for name, path in listing.paths.items()}
    if sum(sizes.values()) > MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
        what = f"has {_mib(sum(sizes.values()))} in {len(sizes)} files, more than {_mib(MAX_BYTES)}"
        fix = "list data in .trainfleetignore, or name a smaller folder with --code DIR"
        largest_files = [Problem(name, _mib(sizes[name])) for name in largest]
        raise _unfit(folder, [Problem(str(folder), what, fix), *largest_files])
    return listing.paths


class _Listing:
    """The files below a folder that are not ignored."""

    def __init__(self, root: Path, without: tuple[Path, ...]) -> None:
        self.root, self.without = root, without
        self.paths: dict[str, Path] = {}
        self.problems: list[Problem] = []

    def add(self, folder: Path, name: str, base: str, rules: IgnoreRules, above: tuple[Path, ...]) -> None:
        """Add a folder, whose path is `name` in the archive and `base` for the rules; `above` finds loops."""
        rules = rules.with_files_of(folder, base)
        for entry in _entries(folder):
            path, inner = Path(entry.path), f"{name}/{entry.name}" if name else entry.name
            ruled = f"{base}/{entry.name}" if base else entry.name
            is_folder, real = path.is_dir(), Path(os.path.realpath(path))
            if rules.ignores(ruled, is_folder=is_folder) or real in self.without:
                continue
            if what := self._unfit(entry, real, above):
                self.problems.append(Problem(inner, what, _IGNORE))
            elif is_folder:
                self.add(path, inner, ruled, rules, (*above, real))
            else:
                self.paths[inner] = path
            if len(self.paths) > MAX_FILES:
                fix = "list data in .trainfleetignore, or name a smaller folder with --code DIR"
                raise _unfit(self.root, [Problem(str(self.root), f"has more than {MAX_FILES} files", fix)])

    def _unfit(self, entry: os.DirEntry[str], real: Path, above: tuple[Path, ...]) -> str:
        """Why an entry cannot be archived. Links are archived as what they point to."""
        if entry.is_symlink() and not real.exists():
            return "is a link to nothing"
        if entry.is_symlink() and not real.is_relative_to(self.root):
            return f"is a link out of the folder, to {real}"
        if entry.is_symlink() and real in above:
            return "is a link to a folder around it"
        if not entry.is_dir() and not entry.is_file():
            return "is neither a file nor a folder"
        if not entry.name.isprintable() or "\\" in entry.name:
            return "has a name that other machines may not accept"
        return ""


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        yield from sorted(found, key=lambda entry: entry.name)


def _unfit(folder: Path, problems: list[Problem]) -> InputError:
    more = [Problem("", f"and {len(problems) - 10} more")] if len(problems) > 10 else []
    return InputError(f"the code in {folder} cannot be launched", [*problems[:10], *more])


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
