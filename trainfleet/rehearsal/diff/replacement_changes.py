"""Which properties replace a resource since an upgrade of its provider, and did not before.

Each side's knowledge table says it: the project's own (`.trainfleet/knowledge/`, in version control), else
the one that ships. A table counts for a side only if it is for the version that the side locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from trainfleet.rehearsal.diff.environments import Upgrade
from trainfleet.rehearsal.diff.sdk_changes import SdkChange
from trainfleet.rehearsal.simulation.knowledge_table import Row, Table, is_behind, tables
from trainfleet.rehearsal.simulation.property_paths import covers, split_path


def replacement_changes(
    tokens: Iterable[str],
    upgrades: Iterable[Upgrade],
    roots: tuple[Path, Path],
    new: Iterable[SdkChange] = (),
) -> tuple[list[SdkChange], list[str]]:
    """Return what differs for the types in use, and a note for each provider of which it is not known.

    Args:
        tokens: the types in use.
        upgrades: the packages that base and head lock in different versions.
        roots: the project folders of base and head.
        new: what else differs; a property that is new as a whole is not repeated.
    """
    found, notes = [], []
    known_new = {
        (each.type, each.property) for each in new if each.what.startswith("new ") or each.what == "new"
    }
    for upgrade in upgrades:
        package = upgrade.package.removeprefix("pulumi-")
        used = sorted({token for token in tokens if token.partition(":")[0] == package})
        if not (used and upgrade.before and upgrade.after):
            continue
        before, after = (
            table_of(package, upgrade.before, roots[0]),
            table_of(package, upgrade.after, roots[1]),
        )
        if before is None or after is None:
            sides = (upgrade.before, before), (upgrade.after, after)
            missing = " or ".join(version for version, table in sides if table is None)
            notes.append(
                f"Which properties newly replace a resource is not known for {upgrade.package}: there is no"
                f" knowledge table of {missing}. Commit one with each version"
                f" (trainfleet knowledge update --package {package})."
            )
            continue
        found += [
            change
            for token in used
            for change in _changes(token, before.types.get(token), after.types.get(token))
            if (change.type, change.property) not in known_new
        ]
    return found, notes


def table_of(package: str, version: str, root: Path) -> Table | None:
    """Return the table of a package in a project, if it is for this version (same major and minor)."""
    known = tables(root).get(package)
    return known if known and version[:1].isdigit() and not is_behind(known, version) else None


def _changes(token: str, before: Row | None, after: Row | None) -> Iterator[SdkChange]:
    if before is None or after is None:
        return  # the type itself is new or removed
    for path in after.replace:
        if not _in(before.replace, path):
            yield SdkChange(token, path, "newly replaces the resource")
    for path, texts in after.when.items():
        new = [text for text in texts if text not in before.when.get(path, ())]
        if new and not _in(before.replace, path):
            yield SdkChange(token, path, f"newly replaces the resource if it {', or '.join(new)}")
    for path in before.replace:
        if not _in((*after.replace, *after.when, *after.unclear), path):
            yield SdkChange(token, path, "no longer replaces the resource")


def _in(paths: Iterable[str], path: str) -> bool:
    return covers(tuple(() if each == "*" else split_path(each) for each in paths), split_path(path))
