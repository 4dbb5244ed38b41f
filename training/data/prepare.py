"""Prepares raw files as blocks once per machine: reads, transforms, splits, packs and writes them atomically.

    class Tones:                                     # a module-level class: it is pickled
        columns = {"sound": Column("float32", (None,)), "label": Column("int64")}
        key = "tones 1"                              # everything that changes the result
        def __call__(self, rows):                    # per row a sample, None (skip) or BadInput
            return [{"sound": row["audio"], "label": len(row["text"])} for row in rows]

    prepared = prepare(find_source("/data/tones"), Tones(), cache, name="tones")
    batch = prepared.blocks("train").rows([3, 5])    # {"sound": [array, array], "label": array([4, 9])}

Two stages: units of raw files become parts, in parallel (processes, or ray.data if Ray runs); parts become
blocks of equal size. Finished parts and blocks survive a kill, and the next start resumes with them. The
result depends on the units and the transform alone, never on the number of processes. With Ray and a `store`,
tasks write both to the store (`in_store`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.data import in_store, pack_blocks
from trainfleet.training.data.bad_rows import BadInput, Integrity, bad_from
from trainfleet.training.data.blocks import BLOCK_FORMAT, MANIFEST, SOURCES, Manifest
from trainfleet.training.data.parts import SPLITS, Combine, Job, SplitRule, Transform, make_part
from trainfleet.training.data.prepared import Prepared, is_prepared, open_prepared
from trainfleet.training.data.remote import is_url, send
from trainfleet.training.data.sources import Source
from trainfleet.training.data.upload import upload
from trainfleet.training.data.worker_pool import Via, choose_via, map_unordered
from trainfleet.training.runtime import failpoints

BLOCK_BYTES = 8 << 20
PARALLEL_FROM = 128 << 20
"""Bytes of raw data below which starting processes costs more than it saves."""

KEY = "key"
"""Of the manifest's settings: identifies what the data was prepared from, and how."""
Progress = Callable[[str, int, int], Any]
"""Called with the current stage, the number of finished items and the total."""


def _silent(*_: Any) -> None:
    return None


def prepare(
    source: Source,
    transform: Transform,
    cache: Path,
    *,
    name: str,
    rule: SplitRule = SplitRule(),
    integrity: Integrity = Integrity(),
    pack: int | None = None,
    combine: Combine | None = None,
    rows_per_block: int | None = None,
    scatter: int | None = None,
    notes: Mapping[str, Any] | None = None,
    extras: Mapping[str, bytes] | None = None,
    settings: Mapping[str, Any] | None = None,
    store: str | None = None,
    via: Via = "auto",
    processes: int | None = None,
    progress: Progress = _silent,
) -> Prepared:
    """Prepare data, or open the result for the same source, transform and settings from the cache or `store`.

    Args:
        source: the raw data.
        transform: turns rows into samples.
        cache: folder of prepared data.
        name: prefix of the cached folder's name.
        rule: assigns rows to splits.
        integrity: what happens to files and rows that cannot be used.
        pack: concatenate the transform's single column into a stream per split, cut into samples of `pack`
            + 1 values, each starting with the last value of the previous one: inputs and targets of a
            language model.
        combine: makes samples of several samples, within each unit and split.
        rows_per_block: by default as many as take about 8 MiB; more, up to 32 MiB, above 65,536 blocks.
        scatter: a seed; distributes the samples over the blocks at random. For sorted sources, such as by
            class.
        notes: plain values stored with the data.
        extras: files stored with the data.
        settings: written to the manifest; `prepared_source` can compare them.
        store: URL or folder that machines share. Data that it holds is read from there instead of prepared;
            other data is copied to it once it is prepared. With ray.data, other data is prepared in it.
        via: see `trainfleet.training.data.worker_pool`. Never changes the result.
        processes: size of the process pool. Never changes the result.
        progress: receives progress reports.

    Raises:
        InputError: files or rows cannot be used (all are named), a split is empty, or the cache is not
            writable.
        TrainfleetError: the store cannot be written, or does not respond.
    """
    layout = pack_blocks.BlockLayout(
        dict(transform.columns), pack, rows_per_block, BLOCK_BYTES, scatter, SPLITS
    )
    job = Job(transform, rule, pack is not None, combine)
    request = _Request(source, job, layout, integrity, dict(notes or {}), dict(extras or {}), settings or {})
    folder = cache / f"{name}-{request.key()}"
    shared = f"{store.rstrip('/')}/{folder.name}" if store is not None else None
    return _build_once(request, folder, shared, via=via, processes=processes, progress=progress)


@dataclass(frozen=True)
class _Request:
    """What `prepare` is asked for; everything but `settings` decides the result."""

    source: Source
    job: Job
    layout: pack_blocks.BlockLayout
    integrity: Integrity
    notes: dict[str, Any]
    extras: dict[str, bytes]
    settings: Mapping[str, Any]

    def digests(self) -> dict[str, str]:
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.extras.items()}

    def key(self) -> str:
        """The cache key."""
        identity = [
            BLOCK_FORMAT,
            self.source.key,
            self.job.transform.key,
            asdict(self.job.rule),
            asdict(self.integrity),
            self.layout.pack,
            self.layout.rows_per_block,
            self.layout.block_bytes,
            self.layout.scatter,
            self.notes,
        ]
        columns = {name: each.document() for name, each in self.job.transform.columns.items()}
        combine = [] if self.job.combine is None else [self.job.combine.key]
        document = json.dumps([*identity, columns, self.digests(), *combine], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:20]

    def manifest(
        self,
        written: pack_blocks.WrittenBlocks,
        source_files: int,
        bad: Sequence[BadInput],
        changed: Sequence[BadInput],
    ) -> Manifest:
        return Manifest(
            self.layout.block_columns(),
            written.rows_per_block,
            written.entries,
            source_files,
            {
                **self.settings,
                "source": self.source.where,
                "transform": self.job.transform.key,
                "splits": asdict(self.job.rule),
                "scatter": self.layout.scatter,
                KEY: self.key(),
            },
            self.integrity.report(bad, changed),
            self.notes,
            self.digests(),
        )


def _build_once(
    request: _Request,
    folder: Path,
    shared: str | None,
    *,
    via: Via,
    processes: int | None,
    progress: Progress,
) -> Prepared:
    """Build the folder and copy it to `shared`, unless one of them is complete; processes of a machine that
    want the same folder wait for one another.

    Raises:
        InputError: the cache is not writable, or the data cannot be used.
    """
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not _is_complete(folder):
                if shared is not None and is_prepared(shared):
                    return open_prepared(shared)
                via = choose_via(via, request.source.size, len(request.source.units), PARALLEL_FROM)
                if via == "ray" and (to := shared or in_store.take_offer()) is not None:
                    return _build_in_store(request, to, via=via, processes=processes, progress=progress)
                _build(request, folder, via=via, processes=processes, progress=progress)
            prepared = open_prepared(str(folder))
            if shared is not None:
                upload(prepared, shared, progress)
            return prepared
    except OSError as error:
        fix = "free disk space, or set TRAINFLEET_CACHE to a writable folder"
        raise InputError(
            "cannot prepare the data", [Problem(str(cache), error.strerror or str(error), fix)]
        ) from error


def _build(request: _Request, folder: Path, *, via: Via, processes: int | None, progress: Progress) -> None:
    """Make parts, blocks and the manifest in a building folder, then move it to `folder`."""
    building = folder.with_name(f".{folder.name}.building")
    building.mkdir(exist_ok=True)
    source = request.source
    reports = _make_parts(source, request.job, building, via=via, processes=processes, progress=progress)
    discard = partial(shutil.rmtree, building, ignore_errors=True)
    bad, changed = _checked(request.integrity, reports, discard)
    sizes = [report["sizes"] for report in reports]
    written = pack_blocks.write_blocks(building, sizes, request.layout, processes, progress)
    for name, content in request.extras.items():
        write_whole(building / name, content)
    source_files = _write_sources(building, len(source.units))
    _finish(building, request.manifest(written, source_files, bad, changed), folder)


def _build_in_store(
    request: _Request, to: str, *, via: Via, processes: int | None, progress: Progress
) -> Prepared:
    """Make parts and blocks in the store, then the manifest (`trainfleet.training.data.in_store`).

    Raises:
        InputError: the target holds other prepared data.
    """
    target = in_store.Target(in_store.absolute(to), request.key())
    where = target.where
    if is_prepared(where):
        return _same(request, where)
    try:
        parts = in_store.make_parts(
            request.source, request.job, target, via=via, processes=processes, progress=progress
        )
        discard = partial(in_store.discard, target)
        bad, changed = _checked(request.integrity, parts.reports, discard)
        written = in_store.write_blocks(
            parts, request.layout, target, via=via, processes=processes, progress=progress
        )
    except Exception:
        if not is_prepared(where):
            raise
        in_store.discard(target)  # another machine finished the same data, and removed the parts
        return _same(request, where)
    for name, content in request.extras.items():
        send(content, f"{where}/{name}")
    send(parts.sources, f"{where}/{SOURCES}")
    send(request.manifest(written, parts.source_files, bad, changed).dump().encode(), f"{where}/{MANIFEST}")
    discard()
    return open_prepared(where)


def _same(request: _Request, where: str) -> Prepared:
    found = open_prepared(where)
    if found.manifest.settings.get(KEY) == request.key():
        return found
    what = "was prepared from other files or settings, or by an earlier version"
    raise InputError("the target holds other prepared data", [Problem(where, what, "choose another target")])


def _make_parts(
    source: Source, job: Job, building: Path, *, via: Via, processes: int | None, progress: Progress
) -> list[dict[str, Any]]:
    """Make the missing parts; returns the reports of all parts in unit order, without the raw files."""
    reports: dict[int, dict[str, Any]] = {}
    for number in range(len(source.units)):
        with contextlib.suppress(FileNotFoundError, ValueError):
            reports[number] = _report(building, number)
            reports[number].pop("sources")
    todo = [number for number in range(len(source.units)) if number not in reports]
    units = [source.units[number] for number in todo]
    total = len(source.units)
    for place, (payload, report) in map_unordered(
        partial(make_part, job), units, via, processes, local=not is_url(source.where)
    ):
        number = todo[place]
        write_whole(building / f"part-{number:06}.arrow", payload)
        write_whole(building / f"part-{number:06}.json", json.dumps(report).encode())
        reports[number] = {key: value for key, value in report.items() if key != "sources"}
        failpoints.hit("in-preparation", len(reports))
        progress("reading", len(reports), total)
    return [reports[number] for number in range(total)]


def _report(building: Path, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((building / f"part-{number:06}.json").read_text())
    return found


def _write_sources(building: Path, parts: int) -> int:
    """Write the raw files of all parts, a part at a time; returns their number."""
    count = 0
    with (building / SOURCES).open("w", encoding="utf-8") as file:
        for number in range(parts):
            for each in _report(building, number)["sources"]:
                file.write(json.dumps(each) + "\n")
                count += 1
    return count


def _checked(
    integrity: Integrity, reports: Sequence[Mapping[str, Any]], discard: Callable[[], Any]
) -> tuple[list[BadInput], list[BadInput]]:
    """What cannot be used and what is used in part; discards the parts if it is too much."""
    bad, changed = (
        [each for report in reports for each in bad_from(report.get(kind, ()))] for kind in ("bad", "changed")
    )
    try:
        integrity.check(bad, sum(report["good"] for report in reports))
    except InputError:
        discard()
        raise
    return bad, changed


def _finish(building: Path, manifest: Manifest, folder: Path) -> None:
    write_whole(building / MANIFEST, manifest.dump().encode())
    for leftover in _leftovers(building):
        leftover.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    building.chmod(0o755)
    building.rename(folder)


def _leftovers(building: Path) -> Iterator[Path]:
    for pattern in ("part-*", "*/*.json", "*/.*", ".*"):
        yield from (path for path in building.glob(pattern) if path.is_file())


def _is_complete(folder: Path) -> bool:
    """Whether a prepared folder has all its blocks in their sizes. An incomplete one is prepared again."""
    try:
        manifest = Manifest.parse((folder / MANIFEST).read_text(), str(folder))
        sizes = {each.name: each.bytes for blocks in manifest.splits.values() for each in blocks}
        return all((folder / name).stat().st_size == size for name, size in sizes.items()) and all(
            (folder / name).is_file() for name in manifest.extras
        )
    except (OSError, InputError):
        return False
