"""From a unit of raw files to the samples of a part: a transform's result for each row, by split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from trainfleet.training.data import pack_blocks
from trainfleet.training.data.bad_rows import BadInput, BadRowError, ChangedRow
from trainfleet.training.data.blocks import write_batches
from trainfleet.training.data.columns import Column
from trainfleet.training.data.sources import Row, Unit, provenance, rows_of

SPLITS = ("train", "validation", "test")

Sample = Mapping[str, Any]


class Transform(Protocol):
    """Turns raw rows into samples. Implemented by a module-level class, so that it can be pickled."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns of every sample."""
        ...

    @property
    def key(self) -> str:
        """Identifies everything that changes the result."""
        ...

    def __call__(self, rows: Sequence[Row]) -> Sequence[Sample | ChangedRow | BadInput | None]:
        """One result per row: a sample, None to skip the row, `BadInput` if it cannot be used, or
        `ChangedRow` if a part of it is used; these are counted and named.
        """
        ...


class Combine(Protocol):
    """Makes samples of several rows' samples. Implemented by a module-level class, as `Transform`."""

    @property
    def key(self) -> str:
        """Identifies everything that changes the result."""
        ...

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples of a unit in one split, with the same columns."""
        ...


@dataclass(frozen=True)
class PerRow:
    """A transform from a function of one row, which may raise `BadRowError`."""

    function: Callable[[Row], Sample | None]
    columns: Mapping[str, Column]
    key: str

    def __call__(self, rows: Sequence[Row]) -> list[Sample | BadInput | None]:
        return [self._one(row) for row in rows]

    def _one(self, row: Row) -> Sample | BadInput | None:
        try:
            return self.function(row)
        except BadRowError as error:
            return BadInput(row["name"], str(error))


@dataclass(frozen=True)
class SplitRule:
    """Assigns rows to splits by a hash of their name, so that a new row never moves another.

    Keeps a dataset's own splits.
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
class Job:
    """The inputs of a part besides its unit."""

    transform: Transform
    rule: SplitRule
    stream: bool
    combine: Combine | None = None


def make_part(job: Job, unit: Unit) -> tuple[Any, dict[str, Any]]:
    """A unit's samples as the bytes of a part file, and its report. A pure function."""
    bad: list[BadInput] = []
    changed: list[BadInput] = []
    rows: list[Row] = []
    for each in rows_of(unit):
        if isinstance(each, BadInput):
            bad.append(each)
        else:
            rows.append(each)
    columns = job.transform.columns
    kept: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for row, sample in zip(rows, job.transform(rows), strict=True):
        if isinstance(sample, BadInput):
            bad.append(sample)
        elif sample is not None:
            values = sample.sample if isinstance(sample, ChangedRow) else sample
            wrong = _mismatch(columns, values)
            if wrong:
                bad.append(BadInput(row["name"], wrong))
                continue
            kept[job.rule.of(row)].append(values)
            if isinstance(sample, ChangedRow):
                changed.append(BadInput(sample.where, sample.what))
    good = sum(len(samples) for samples in kept.values())
    if job.combine is not None:
        kept = {split: list(job.combine(samples)) for split, samples in kept.items()}
    batches = [pack_blocks.part_batch(columns, kept[split], job.stream) for split in SPLITS]
    report = {
        "sizes": [len(batch[next(iter(columns))]) for batch in batches],
        "good": good,
        "bad": [asdict(each) for each in bad],
        "changed": [asdict(each) for each in changed],
        "sources": provenance(unit),
    }
    return write_batches(*batches).to_pybytes(), report


def _mismatch(columns: Mapping[str, Column], sample: Sample) -> str:
    if set(sample) != set(columns):
        return f"the transform gives {', '.join(sorted(sample))} instead of {', '.join(sorted(columns))}"
    wrong = ((name, column.mismatch(sample[name])) for name, column in columns.items())
    return "; ".join(f"{name} {what}" for name, what in wrong if what)
