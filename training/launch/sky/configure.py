"""`trainfleet sky setup`: contexts in the kubeconfig and entries in SkyPilot's configuration, and their undo.

The earlier content of each file is kept in a note next to the configuration until `--undo`, which refuses a
file that was changed in the meantime.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.sky import yaml_edit
from trainfleet.training.launch.sky.config import context_config, context_name, merged
from trainfleet.training.launch.sky.kubeconfig import (
    Requested,
    context_names,
    kubeconfig_path,
    masked,
    read_kubeconfig,
    with_context,
)

NOTE = "trainfleet-setup.json"
PLUGIN = "trainfleet.training.launch.sky.plugin.Trainfleet"
SECRET_MODE = 0o600


@dataclass(frozen=True)
class Change:
    """A file's present content (None: it does not exist), its new content, and both without secrets."""

    file: Path
    before: str | None
    after: str | None
    shown: tuple[str, str]

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return self.before == self.after

    def difference(self) -> str:
        """What would change, as a unified diff."""
        old, new = (text.splitlines(keepends=True) for text in self.shown)
        return "".join(difflib.unified_diff(old, new, f"{self.file} (now)", f"{self.file} (then)"))


@dataclass(frozen=True)
class Setup:
    """The changes of a setup."""

    changes: tuple[Change, ...]
    note: Path
    comments_lost: bool
    contexts: tuple[str, ...]

    @property
    def empty(self) -> bool:
        return all(change.empty for change in self.changes)


def config_path(env: Mapping[str, str]) -> Path:
    """SkyPilot's configuration: SKYPILOT_GLOBAL_CONFIG, else ~/.sky/config.yaml."""
    path = env.get("SKYPILOT_GLOBAL_CONFIG")
    return (
        Path(path).expanduser() if path else Path(env.get("HOME", "~")).expanduser() / ".sky" / "config.yaml"
    )


def plugins_path(env: Mapping[str, str]) -> Path:
    """The plugins of SkyPilot's API server: SKYPILOT_SERVER_PLUGINS_CONFIG, else ~/.sky/plugins.yaml."""
    path = env.get("SKYPILOT_SERVER_PLUGINS_CONFIG")
    return (
        Path(path).expanduser() if path else Path(env.get("HOME", "~")).expanduser() / ".sky" / "plugins.yaml"
    )


def prepare(
    platforms: Sequence[tuple[PlatformOutputs, str | Requested | None]],
    env: Mapping[str, str],
    *,
    kubeconfig: Path | None = None,
    replace: bool = False,
    managed: bool = False,
) -> Setup:
    """The changes for these platforms, each with the launcher's token, or how long requested ones last,
    or None where its context exists.

    Raises:
        InputError: a file cannot be read, two platforms have one context, or a context is missing or is the
            user's own.
    """
    _require_distinct([outputs for outputs, _ in platforms])
    access = kubeconfig or kubeconfig_path(env)
    before = read_kubeconfig(access)
    document: dict[str, Any] = dict(before)
    problems: list[Problem] = []
    for outputs, token in platforms:
        if token is not None:
            document = with_context(document, outputs, token, file=access, replace=replace)
        elif context_name(outputs) not in context_names(document):
            what = f"has no context `{context_name(outputs)}`, and the platform has no login of its own"
            problems.append(
                Problem(str(access), what, "add the cluster's context first, or use --kubeconfig FILE")
            )
    if problems:
        raise InputError("a platform has no context", problems)
    contexts = {context_name(outputs): context_config(outputs) for outputs, _ in platforms}
    config = config_path(env)
    old = _text(config)
    user = _document(config, old)
    new, lost = yaml_edit.changed(old or "", merged(user, contexts, managed=managed))
    was = _text(access)
    then = was if document == before else yaml.safe_dump(document, sort_keys=False, width=150)
    changes = [
        Change(access, was, then, (masked(before), masked(document))),
        Change(config, old, new, (old or "", new)),
    ]
    if managed:
        changes.append(_with_plugin(plugins_path(env)))
    return Setup(tuple(changes), config.with_name(NOTE), lost, tuple(contexts))


def _with_plugin(file: Path) -> Change:
    """Add the plugin that probes the clusters to the user's own."""
    old = _text(file)
    document = _document(file, old, "plugins", list)
    listed = list(document.get("plugins") or [])
    if not any(isinstance(each, dict) and each.get("class") == PLUGIN for each in listed):
        listed.append({"class": PLUGIN})
    new, _ = yaml_edit.changed(old or "", {**document, "plugins": listed})
    return Change(file, old, new, (old or "", new))


def apply(setup: Setup) -> None:
    """Write the files, and the note that `undo` reads.

    Raises:
        InputError: a file cannot be written; those written before it have been restored.
    """
    note = _note(setup.note)
    kept: dict[str, dict[str, Any]] = {}
    for change in setup.changes:
        known = note.get(str(change.file))
        first = (
            known["before"]
            if known is not None and known["written"] == _digest(change.before)
            else change.before
        )
        kept[str(change.file)] = {"before": first, "written": _digest(change.after)}
    done: list[Change] = []
    try:
        write_whole(setup.note, json.dumps({**note, **kept}, indent=1), SECRET_MODE)
        for change in setup.changes:
            if not change.empty:
                write_whole(change.file, change.after or "", SECRET_MODE)
                done.append(change)
    except InputError:
        for change in done:
            _restore(change.file, change.before)
        write_whole(setup.note, json.dumps(note, indent=1), SECRET_MODE)
        raise


def undo(env: Mapping[str, str]) -> list[Change]:
    """The changes that undo the setup.

    Raises:
        InputError: there was no setup, or a file was changed since.
    """
    note_file = config_path(env).with_name(NOTE)
    note = _note(note_file)
    if not note:
        raise InputError(
            "there is nothing to undo",
            [Problem(str(note_file), "does not exist: `trainfleet sky setup` wrote nothing")],
        )
    changes, problems = [], []
    for name, known in note.items():
        file = Path(name)
        now = _text(file)
        if _digest(now) != known["written"] and now != known["before"]:
            fix = f"its earlier content is in {note_file} under `before`"
            problems.append(Problem(name, "was changed since the setup, and undo would lose that", fix))
        shown = _shown(now), _shown(known["before"])
        changes.append(Change(file, now, known["before"], shown))
    if problems:
        raise InputError("cannot undo", problems)
    return changes


def apply_undo(changes: Sequence[Change], env: Mapping[str, str]) -> None:
    """Restore the files, and delete the note."""
    for change in changes:
        _restore(change.file, change.after)
    config_path(env).with_name(NOTE).unlink(missing_ok=True)


def _restore(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink(missing_ok=True)
    else:
        write_whole(file, text, SECRET_MODE)


def _require_distinct(platforms: Sequence[PlatformOutputs]) -> None:
    names = [context_name(outputs) for outputs in platforms]
    shared = sorted({name for name in names if names.count(name) > 1})
    if shared:
        problems = [
            Problem(
                "--stack",
                f"two platforms have the context `{name}`",
                "their clusters need different names, or regions",
            )
            for name in shared
        ]
        raise InputError("two platforms cannot be distinguished", problems)


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or "is not text"
        raise InputError("cannot read a file", [Problem(str(file), what)]) from error


def _document(file: Path, text: str | None, part: str = "kubernetes", kind: type = dict) -> dict[str, Any]:
    try:
        document = yaml_limits.load(text or "") or {}
    except yaml.YAMLError as error:
        raise InputError(
            "cannot read SkyPilot's configuration",
            [Problem(str(file), str(error).splitlines()[0], "fix it first")],
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get(part) or kind(), kind):
        raise InputError(
            "cannot read SkyPilot's configuration",
            [Problem(str(file), "is not a mapping of keys", "fix it first")],
        )
    return document


def _shown(text: str | None) -> str:
    document = yaml_limits.load(text or "")
    return masked(document) if isinstance(document, dict) and "users" in document else (text or "")


def _note(file: Path) -> dict[str, Any]:
    text = _text(file)
    return dict(json.loads(text)) if text else {}


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()
