"""Finds a chart: in the project, in a cache, or (if allowed) in its repository, from which helm pulls it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainfleet.rehearsal.diff.helm.chart import Chart, NotRenderedError
from trainfleet.rehearsal.diff.helm.command import PULL_SECONDS, last_line, run_helm

_EXACT = re.compile(r"v?\d+\.\d+\.\d+([-+][\w.+-]+)?")
ALLOW = "--charts lets helm download it"


@dataclass(frozen=True)
class Folders:
    """Where the charts of one side are looked for.

    `project` is the folder of Pulumi.yaml in the side's checkout, None if the side has no files; local charts
    may not leave `checkout`.
    """

    project: Path | None = None
    checkout: Path | None = None
    program: Path | None = None


def find(chart: Chart, folders: Folders, *, download: bool, scratch: Path) -> Path:
    """Return the folder or the archive of a chart.

    Raises:
        NotRenderedError: it is not available; says why, and what would make it available.
    """
    if chart.unsupported:
        raise NotRenderedError(f"its `{chart.unsupported}` is a command, which a diff does not run")
    if not chart.chart:
        raise NotRenderedError("its source is not known before the apply")
    if not chart.is_remote and (found := _local(chart, folders)) is not None:
        return found
    if (kept := next((path for path in _cached(chart) if path.is_file()), None)) is not None:
        return kept
    if not download:
        raise NotRenderedError("it is neither in the project nor in a cache of charts", ALLOW)
    return _pulled(chart, scratch)


def local(chart: Chart, folders: Folders) -> Path | None:
    """Return the folder or the archive of a chart in the project; None if it does not exist."""
    try:
        return _local(chart, folders)
    except NotRenderedError:
        return None


def _local(chart: Chart, folders: Folders) -> Path | None:
    """Return a chart of the project; None if its name is that of a repository's chart.

    Raises:
        NotRenderedError: it is not a file of the checkout.
    """
    looks_local = chart.chart.startswith((".", "/")) or chart.chart.endswith(".tgz")
    if folders.project is None or folders.checkout is None:
        if looks_local:
            raise NotRenderedError("it is a file of the deployed program, which the export does not contain")
        return None
    for base in filter(None, (folders.project, folders.program)):
        path = (base / chart.chart).resolve()
        if path.exists():
            _check_inside(path, folders.checkout.resolve())
            return path
    if looks_local:
        raise NotRenderedError(f"`{chart.chart}` is not among the files of this side")
    return None


def _check_inside(path: Path, checkout: Path) -> None:
    """Refuse a chart with files outside the checkout, whose text would be on the page.

    Raises:
        NotRenderedError: the chart or a link in it leaves the checkout.
    """
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    if not all(each.resolve().is_relative_to(checkout) for each in files):
        raise NotRenderedError("it is outside the repository, or has a link that leads out of it")


def content_digest(path: Path) -> str:
    """Return a digest of a chart's files."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _cached(chart: Chart) -> Iterator[Path]:
    """Yield where an exact version of a chart may be: this product's own cache, then helm's.

    helm's cache does not say from which repository an archive comes, so it is the last place.
    """
    if _EXACT.fullmatch(chart.version):
        yield _own(chart)
        name = chart.chart.rstrip("/").rsplit("/", 1)[-1]
        home = os.environ.get("HELM_CACHE_HOME") or str(_helm_cache())
        repository = Path(os.environ.get("HELM_REPOSITORY_CACHE") or Path(home) / "repository")
        yield repository / f"{name}-{chart.version}.tgz"


def _helm_cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("helm")


def _own(chart: Chart) -> Path:
    from trainfleet.toolchain import cache_folder

    source = f"{chart.repository}\0{chart.chart}\0{chart.version}"
    return cache_folder() / "charts" / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.tgz"


def _pulled(chart: Chart, scratch: Path) -> Path:
    """Download a chart with the user's own helm settings; keep an exact version in the cache.

    Raises:
        NotRenderedError: helm cannot pull it; contains its message.
    """
    target = Path(tempfile.mkdtemp(dir=scratch, prefix="pull-"))
    arguments = ["pull", f"--destination={target}"]
    arguments += [f"--repo={chart.repository}"] if chart.repository else []
    arguments += [f"--version={chart.version}"] if chart.version else []
    done = run_helm([*arguments, "--", chart.chart], PULL_SECONDS, None)
    pulled = next(target.glob("*.tgz"), None)
    if done.code or pulled is None:
        raise NotRenderedError(f"helm cannot download it: {last_line(done.error)}")
    if not _EXACT.fullmatch(chart.version):
        return pulled
    kept = _own(chart)
    kept.parent.mkdir(parents=True, exist_ok=True)
    work = kept.with_name(f".{kept.name}.{os.getpid()}")
    shutil.copyfile(pulled, work)
    work.replace(kept)
    return kept
