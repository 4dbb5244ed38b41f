"""Raw files into block files, once per machine: read, turned into samples, split, packed and written, whole
or not at all.

    class Tones:                                     # a frozen dataclass or a module's class: it travels to
    other processes
        columns = {"sound": Column("float32", (None,)), "label": Column("int64")}
        key = "tones 1"                              # everything that changes what it returns
        def __call__(self, rows):                    # a list of samples (or None: left out, or Bad: cannot be
        used) per row
            return [{"sound": row["audio"], "label": len(row["text"])} for row in rows]

    prepared = prepare(find_source("/data/tones"), Tones(), cache, name="tones")
    batch = prepared.blocks("train").rows([3, 5])    # {"sound": [array, array], "label": array([4, 9])}

Two stages. Units of raw files become parts, in parallel (processes, or ray.data where Ray runs); then parts
become blocks of
the same number of samples each. Finished parts and blocks are kept through a kill, and the next start goes on
with them.
Easy to get wrong: what comes out depends on the units and the transform alone, never on how many processes
worked.
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
from typing import Any, Protocol

from filelock import FileLock

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.data import pack_blocks
from trainfleet.training.data.bad_rows import Bad, BadRowError, Integrity, bad_from
from trainfleet.training.data.blocks import FORMAT, MANIFEST, Manifest, write_batches
from trainfleet.training.data.columns import Column
from trainfleet.training.data.remote import is_url
from trainfleet.training.data.sources import Row, Source, Unit, provenance, rows_of
from trainfleet.training.data.stream import Blocks, open_blocks, read_file, read_manifest
from trainfleet.training.data.worker_pool import Via, choose, results
from trainfleet.training.runtime import failpoints

SPLITS = ("train", "validation", "test")
BLOCK_BYTES = 8 << 20
PARALLEL_FROM = 128 << 20
"""Bytes of raw data below which starting processes costs more than it saves."""

Sample = Mapping[str, Any]
Progress = Callable[[str, int, int], Any]
"""Told what is being done, how much of it is done, and how much there is."""


def _silent(*_: Any) -> None:
    return None


class Transform(Protocol):
    """What a workload does with raw rows. An object of a module's class, so that it can be sent to other
    processes.
    """

    @property
    def columns(self) -> Mapping[str, Column]:
        """Of every sample."""
        ...

    @property
    def key(self) -> str:
        """Everything that changes what it returns."""
        ...

    def __call__(self, rows: Sequence[Row]) -> Sequence[Sample | Bad | None]:
        """One result per row: a sample; None, to leave the row out on purpose; or why it cannot be used."""
        ...


@dataclass(frozen=True)
class PerRow:
    """A transform made of a function of one row, which may raise `BadRowError`."""

    function: Callable[[Row], Sample | None]
    columns: Mapping[str, Column]
    key: str

    def __call__(self, rows: Sequence[Row]) -> list[Sample | Bad | None]:
        return [self._one(row) for row in rows]

    def _one(self, row: Row) -> Sample | Bad | None:
        try:
            return self.function(row)
        except BadRowError as error:
            return Bad(row["name"], str(error))


@dataclass(frozen=True)
class SplitRule:
    """Where a row goes: by a hash of its name, so that a new row never moves another; a dataset's own splits
    are kept.
    """

    validation_share: float = 0.05
    test_share: float = 0.05
    seed: int = 0

    def of(self, row: Row) -> str:
        if row.get("split") in SPLITS:
            return str(row["split"])
        return self.of_name(row["name"])

    def of_name(self, name: str) -> str:
        share = int.from_bytes(hashlib.sha256(f"{self.seed}:{name}".encode()).digest()[:8]) / 2**64
        if share < self.test_share:
            return "test"
        return "validation" if share < self.test_share + self.validation_share else "train"


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, or the URL of one."""

    where: str
    manifest: Manifest

    def blocks(self, split: str, **settings: Any) -> Blocks:
        """A split's samples; settings as `trainfleet.training.data.stream.Blocks` takes them."""
        return open_blocks(self.where, split, self.manifest, **settings)

    def extra(self, name: str) -> bytes:
        """One of the folder's other files.

        Raises:
            TrainfleetError: it is gone, or not what was written.
        """
        content = read_file(f"{self.where}/{name}")
        if hashlib.sha256(content).hexdigest() != self.manifest.extras[name]:
            raise TrainfleetError(
                "the prepared data is torn",
                [Problem(f"{self.where}/{name}", "is not what was written", "prepare it anew")],
            )
        return content

    def facts(self) -> dict[str, Any]:
        """What run.json says about the data."""
        bad = self.manifest.bad
        rows = {split: self.manifest.rows(split) for split in self.manifest.splits}
        left_out = {"count": bad.get("count", 0), "named": bad.get("named", [])[:20]}
        return {
            "manifest": f"{self.where}/{MANIFEST}",
            "digest": self.manifest.digest(),
            "rows": rows,
            "left_out": left_out,
        }


@dataclass(frozen=True)
class Job:
    """What a part depends on besides its unit."""

    transform: Transform
    rule: SplitRule
    stream: bool


def prepare(
    source: Source,
    transform: Transform,
    cache: Path,
    *,
    name: str,
    rule: SplitRule = SplitRule(),
    integrity: Integrity = Integrity(),
    pack: int | None = None,
    rows_per_block: int | None = None,
    scatter: int | None = None,
    notes: Mapping[str, Any] | None = None,
    extras: Mapping[str, bytes] | None = None,
    settings: Mapping[str, Any] | None = None,
    via: Via = "auto",
    processes: int | None = None,
    progress: Progress = _silent,
) -> Prepared:
    """Prepare data, or open what was prepared before with the same source, transform and settings.

    Args:
        name: what the cached folder is called, before its key.
        pack: join the transform's one column of numbers into a stream per split, and cut it into samples of
        `pack` + 1 values,
            each beginning with the last of the one before: inputs and targets of a language model.
        rows_per_block: by default as many as make about 8 MiB.
        scatter: a seed: deal the samples out to blocks at random. For sources that are sorted, say by class.
        notes, extras: kept with the data: plain values, and files.
        settings: written to the manifest for whoever reads it.
        via, processes: how the work is done; see `trainfleet.training.data.worker_pool`. Never changes a
        byte.

    Raises:
        InputError: files or rows cannot be used (all are named), a split is empty, or the cache cannot be
        written.
    """
    asked = [
        FORMAT,
        source.key,
        transform.key,
        asdict(rule),
        asdict(integrity),
        pack,
        rows_per_block,
        BLOCK_BYTES,
        scatter,
        dict(notes or {}),
    ]
    columns = {column: each.document() for column, each in transform.columns.items()}
    digests = {extra: hashlib.sha256(content).hexdigest() for extra, content in (extras or {}).items()}
    key = hashlib.sha256(json.dumps([*asked, columns, digests], sort_keys=True).encode()).hexdigest()[:20]
    folder = cache / f"{name}-{key}"
    how = pack_blocks.Layout(dict(transform.columns), pack, rows_per_block, BLOCK_BYTES, scatter, SPLITS)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not _whole(folder):
                building = cache / f".{folder.name}.building"
                building.mkdir(exist_ok=True)
                job = Job(transform, rule, pack is not None)
                via = choose(via, source.size, len(source.units), PARALLEL_FROM)
                reports = _parts(source, job, building, via=via, processes=processes, progress=progress)
                bad = [each for report in reports for each in bad_from(report["bad"])]
                _judge(integrity, bad, sum(report["good"] for report in reports), building)
                splits = pack_blocks.blocks(
                    building, [report["sizes"] for report in reports], how, processes, progress
                )
                for extra, content in (extras or {}).items():
                    write_whole(building / extra, content)
                manifest = Manifest(
                    how.written(),
                    splits.rows_per_block,
                    splits.entries,
                    [each for report in reports for each in report["sources"]],
                    {
                        **(settings or {}),
                        "source": source.where,
                        "transform": transform.key,
                        "splits": asdict(rule),
                        "scatter": scatter,
                    },
                    integrity.report(bad),
                    dict(notes or {}),
                    digests,
                )
                _finish(building, manifest, folder)
    except OSError as error:
        fix = "make room, or set TRAINFLEET_CACHE to a folder that can be written"
        raise InputError(
            "cannot prepare the data", [Problem(str(cache), error.strerror or str(error), fix)]
        ) from error
    return open_prepared(str(folder))


def open_prepared(where: str) -> Prepared:
    """Open a prepared folder, or one in an object store.

    Raises:
        InputError: there is none.
    """
    return Prepared(where, read_manifest(where))


def make_part(job: Job, unit: Unit) -> tuple[Any, dict[str, Any]]:
    """One unit's samples as the bytes of a part file, and what is to be known about it. A pure function: done
    anywhere, the same bytes.
    """
    bad: list[Bad] = []
    rows: list[Row] = []
    for each in rows_of(unit):
        if isinstance(each, Bad):
            bad.append(each)
        else:
            rows.append(each)
    columns = job.transform.columns
    kept: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for row, sample in zip(rows, job.transform(rows), strict=True):
        if isinstance(sample, Bad):
            bad.append(sample)
        elif sample is not None:
            wrong = _fault(columns, sample)
            if wrong:
                bad.append(Bad(row["name"], wrong))
            else:
                kept[job.rule.of(row)].append(sample)
    batches = [pack_blocks.part_batch(columns, kept[split], job.stream) for split in SPLITS]
    report = {
        "sizes": [len(batch[next(iter(columns))]) for batch in batches],
        "good": sum(len(samples) for samples in kept.values()),
        "bad": [asdict(each) for each in bad],
        "sources": provenance(unit),
    }
    return write_batches(*batches).to_pybytes(), report


def _fault(columns: Mapping[str, Column], sample: Sample) -> str:
    if set(sample) != set(columns):
        return f"the transform gives {', '.join(sorted(sample))} instead of {', '.join(sorted(columns))}"
    wrong = ((name, column.fault(sample[name])) for name, column in columns.items())
    return "; ".join(f"{name} {what}" for name, what in wrong if what)


def _parts(
    source: Source, job: Job, building: Path, *, via: Via, processes: int | None, progress: Progress
) -> list[dict[str, Any]]:
    """Make the parts that are not there yet; returns the reports of all, in the order of the units."""
    reports: dict[int, dict[str, Any]] = {}
    for number in range(len(source.units)):
        with contextlib.suppress(FileNotFoundError, ValueError):
            reports[number] = json.loads((building / f"part-{number:06}.json").read_text())
    todo = [number for number in range(len(source.units)) if number not in reports]
    units = [source.units[number] for number in todo]
    total = len(source.units)
    for place, (payload, report) in results(
        partial(make_part, job), units, via, processes, local=not is_url(source.where)
    ):
        number = todo[place]
        write_whole(building / f"part-{number:06}.arrow", payload)
        write_whole(building / f"part-{number:06}.json", json.dumps(report).encode())
        reports[number] = report
        failpoints.strike("in-preparation", len(reports))
        progress("reading", len(reports), total)
    return [reports[number] for number in range(total)]


def _judge(integrity: Integrity, bad: list[Bad], good: int, building: Path) -> None:
    try:
        integrity.judge(bad, good)
    except InputError:
        shutil.rmtree(building, ignore_errors=True)
        raise


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


def _whole(folder: Path) -> bool:
    """Whether a prepared folder has all its blocks, each of its size; what is not, is prepared anew."""
    try:
        manifest = Manifest.parse((folder / MANIFEST).read_text(), str(folder))
        sizes = {each.name: each.bytes for blocks in manifest.splits.values() for each in blocks}
        return all((folder / name).stat().st_size == size for name, size in sizes.items()) and all(
            (folder / name).is_file() for name in manifest.extras
        )
    except (OSError, InputError):
        return False
