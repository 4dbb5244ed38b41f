"""Reads bills in the FinOps Open Cost and Usage Specification (FOCUS) 1.x, row by row: CSV, gzip or Parquet.

All rows are checked. The mistakes of a file are reported together, each with its line (https://focus.finops.org).
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.suggestions import nearest

REQUIRED = (
    "BilledCost",
    "EffectiveCost",
    "BillingCurrency",
    "ChargeCategory",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ServiceName",
    "Tags",
)
"""Columns that FOCUS makes mandatory, or that say whose a charge is."""
OPTIONAL = (
    "ChargeFrequency",
    "ServiceCategory",
    "ResourceType",
    "ConsumedQuantity",
    "ConsumedUnit",
    "SkuPriceDetails",
)
TEXTS = ("ChargeDescription", "ResourceType", "SkuMeter", "SkuId", "SkuPriceDetails")
"""Columns that say what was charged; those of the provider (`x_...Usage...`, `x_...Sku...`) are read too."""
CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
MOST_PROBLEMS = 20
YEARS = range(2000, 2200)
BATCH = 8192
_LONGEST = 4 << 20
"""Characters of one value."""
_OTHERS = {
    "lineItem/": "a cost and usage report of AWS, not a FOCUS export: create an export of the FOCUS table",
    "line_item_": "a cost and usage report of AWS, not a FOCUS export: create an export of the FOCUS table",
    "PreTaxCost": "a cost export of Azure in its own format: create one of the type FOCUS",
    "CostInBillingCurrency": "a cost export of Azure in its own format: create one of the type FOCUS",
    "usage_start_time": "a billing export of Google Cloud in its own format: query the FOCUS view",
}
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Charge:
    """One row of a bill. Costs are in the billing currency, times in UTC."""

    billed: float
    effective: float
    currency: str
    category: str
    one_time: bool
    start: datetime
    end: datetime
    service: str
    text: str
    """Everything that says what was charged."""
    tags: Mapping[str, str]
    """By normalized key: `user:trainfleet:owner` is `trainfleet-owner`."""
    hours: float | None
    """The consumed quantity in hours; None if it is measured in something else."""


class _Mistakes:
    """The problems of one file. Reading stops at MOST_PROBLEMS."""

    def __init__(self, file: Path) -> None:
        self.file, self.found = file, list[Problem]()

    def add(self, line: int, what: str, fix: str = "") -> None:
        self.found.append(Problem(f"{self.file}:{line}", what, fix))
        if len(self.found) >= MOST_PROBLEMS:
            self.end()

    def end(self) -> None:
        """Raise an InputError if there are problems."""
        if self.found:
            raise InputError("the bill cannot be read", self.found)


def charges(files: Sequence[Path]) -> Iterator[Charge]:
    """Yield the charges of all files; the memory does not depend on their size.

    Raises:
        InputError: a file cannot be read, is not a FOCUS export, has wrong rows, or is given twice.
        MissingToolError: a Parquet file, and pyarrow is not installed.
    """
    seen: set[Path] = set()
    for file in files:
        if file.resolve() in seen:
            raise InputError(
                "a bill is given twice", [Problem(str(file), "would be counted twice", "omit it")]
            )
        seen.add(file.resolve())
        mistakes = _Mistakes(file)
        for line, values in _rows(file, mistakes):
            if (charge := _charge(line, values, mistakes)) is not None:
                yield charge
        mistakes.end()


def _rows(file: Path, mistakes: _Mistakes) -> Iterator[tuple[int, Values]]:
    try:
        with file.open("rb") as stream:
            head = stream.read(4)
            stream.seek(0)
            if head == b"PAR1":
                yield from _parquet(file)
            elif head[:2] == b"PK":
                raise _wrong(file, "is a ZIP archive", "unpack it, and pass the CSV or Parquet file")
            elif head[:2] == b"\x1f\x8b":
                with gzip.open(stream) as inner:
                    yield from _csv(file, inner, mistakes)
            else:
                yield from _csv(file, stream, mistakes)
    except UnicodeDecodeError as error:
        raise _wrong(file, "is not UTF-8 text", "export it as CSV in UTF-8, or as Parquet") from error
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise InputError("cannot read a bill", [Problem(str(file), what)]) from error


def _wrong(file: Path, what: str, fix: str = "") -> InputError:
    return InputError("not a FOCUS export", [Problem(str(file), what, fix)])


# ---- CSV


def _csv(file: Path, stream: BinaryIO | gzip.GzipFile, mistakes: _Mistakes) -> Iterator[tuple[int, Values]]:
    csv.field_size_limit(_LONGEST)
    reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), strict=True)
    try:
        header = next(reader, [])
        columns = _columns(file, header)
        for row in reader:
            if len(row) == len(header):
                yield reader.line_num, {name: row[index] for name, index in columns}
            elif row:
                mistakes.add(reader.line_num, f"has {len(row)} values, and the header {len(header)} columns")
    except csv.Error as error:
        mistakes.add(reader.line_num, f"is not CSV: {error}")
        mistakes.end()


def _columns(file: Path, header: Sequence[str]) -> list[tuple[str, int]]:
    """Return the columns that are read and their places.

    Raises:
        InputError: it is another format, or columns are missing or repeated.
    """
    if not any(header):
        raise _wrong(file, "is empty", "export the costs again")
    for mark, what in _OTHERS.items():
        if any(mark in name for name in header):
            raise _wrong(file, f"is {what}")
    missing = [name for name in REQUIRED if name not in header]
    if len(missing) > len(REQUIRED) // 2:
        raise _wrong(file, f"has no columns {', '.join(missing)}", "https://focus.finops.org")
    problems = []
    for name in missing:
        close = nearest(name, header)
        fix = f"is `{close}` meant? Names are as in the specification" if close else "export it too"
        problems.append(Problem(str(file), f"has no column {name}", fix))
    read = [name for name in (*REQUIRED, *OPTIONAL, *TEXTS) if name in header]
    problems += [
        Problem(str(file), f"has the column {name} twice")
        for name in dict.fromkeys(read)
        if header.count(name) > 1
    ]
    if problems:
        raise InputError("the bill lacks columns", problems)
    own = [name for name in header if re.match(r"x_.*(usage|sku|meter|instance)", name, re.IGNORECASE)]
    return [(name, header.index(name)) for name in dict.fromkeys([*read, *own])]


# ---- Parquet


def _parquet(file: Path) -> Iterator[tuple[int, Values]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        fix = "install trainfleet[train], or export the bill as CSV"
        raise MissingToolError(
            "reading Parquet needs pyarrow", [Problem(str(file), "is Parquet", fix)]
        ) from error
    try:
        with pq.ParquetFile(file) as opened:
            columns = [name for name, _ in _columns(file, opened.schema_arrow.names)]
            line = 0
            for batch in opened.iter_batches(batch_size=BATCH, columns=columns):
                for values in batch.to_pylist():
                    line += 1
                    yield line, values
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _wrong(file, f"is a damaged Parquet file: {(str(error).splitlines() or [''])[0]}") from error


# ---- one row


def _charge(line: int, values: Values, mistakes: _Mistakes) -> Charge | None:
    before = len(mistakes.found)
    numbers = {}
    for name in ("BilledCost", "EffectiveCost", "ConsumedQuantity"):
        value = values.get(name)
        number = _number(value)
        if number is None and (name != "ConsumedQuantity" or value not in (None, "")):
            mistakes.add(line, f"{name}: {value!r} is not a number", "such as 12.5")
        numbers[name] = number
    times = {}
    for name in ("ChargePeriodStart", "ChargePeriodEnd"):
        times[name] = _time(values.get(name))
        if times[name] is None:
            mistakes.add(line, f"{name}: {values.get(name)!r} is not a time", "such as 2026-11-01T00:00:00Z")
    category = str(values.get("ChargeCategory") or "")
    if category not in CATEGORIES:
        mistakes.add(line, f"ChargeCategory: {category!r} is not one of {', '.join(CATEGORIES)}")
    currency = str(values.get("BillingCurrency") or "")
    if not _is_currency(currency):
        mistakes.add(line, f"BillingCurrency: {currency!r} is not a currency", "such as USD")
    tags = _tags(values.get("Tags"))
    if tags is None:
        mistakes.add(line, f"Tags: {str(values.get('Tags'))[:60]!r} is not a JSON object", '{"key": "value"}')
    start, end = times["ChargePeriodStart"], times["ChargePeriodEnd"]
    if start and end and end < start:
        mistakes.add(line, f"ChargePeriodEnd {end.isoformat()} is before its start {start.isoformat()}")
    if len(mistakes.found) > before or start is None or end is None or tags is None:
        return None
    return Charge(
        numbers["BilledCost"] or 0.0,
        numbers["EffectiveCost"] or 0.0,
        currency,
        category,
        values.get("ChargeFrequency") == "One-Time",
        start,
        end,
        str(values.get("ServiceName") or ""),
        " ".join(
            str(value) for name, value in values.items() if value and (name in TEXTS or name.startswith("x_"))
        ),
        tags,
        _hours(numbers["ConsumedQuantity"], str(values.get("ConsumedUnit") or "")),
    )


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _time(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return _in_utc(value)
    return _parsed_time(value) if isinstance(value, str) else None


def _in_utc(value: datetime) -> datetime | None:
    if value.year not in YEARS:
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


@functools.lru_cache(maxsize=4096)
def _parsed_time(text: str) -> datetime | None:
    try:
        return _in_utc(datetime.fromisoformat(text.strip().removesuffix(" UTC").replace("Z", "+00:00")))
    except ValueError:
        return None


def _tags(value: Any) -> Mapping[str, str] | None:
    """Return the tags by normalized key; None if they are malformed."""
    if isinstance(value, str):
        return _parsed_tags(value)
    return _normalized(value)


@functools.lru_cache(maxsize=4096)
def _parsed_tags(text: str) -> Mapping[str, str] | None:
    if text.strip() in ("", "null"):
        return {}
    try:
        return _normalized(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _normalized(value: Any) -> Mapping[str, str] | None:
    """Return tags of an object, of pairs (Parquet's maps), or of a list of `key` and `value` (BigQuery)."""
    pairs: Iterable[Any]
    if value is None:
        return {}
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, list) and all(isinstance(each, Mapping) and "key" in each for each in value):
        pairs = [(each["key"], each.get("value")) for each in value]
    elif isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 2 for each in value):
        pairs = value
    else:
        return None
    return {tag_key(str(key)): "" if found is None else str(found) for key, found in pairs}


@functools.lru_cache(maxsize=4096)
def tag_key(key: str) -> str:
    """Return a tag's key without the scheme's prefix, as lower case words: `user:Trainfleet:Owner` is
    `trainfleet-owner`.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
    return re.sub(r"^(resourcetags-)?(user|userdefined|label|tag)-(?=.)", "", plain)


_UNITS = {"hour": 1.0, "hr": 1.0, "h": 1.0, "minute": 1 / 60, "second": 1 / 3600, "s": 1 / 3600}


def _hours(quantity: float | None, unit: str) -> float | None:
    """Return a quantity in hours. A unit may have a factor, such as `100 Hours`."""
    factor = _hours_of(unit)
    return None if quantity is None or factor is None else quantity * factor


@functools.lru_cache(maxsize=1024)
def _hours_of(unit: str) -> float | None:
    found = re.fullmatch(r"(\d+)?\s*([a-z]+?)s?", unit.strip().lower())
    return float(found[1] or 1) * _UNITS[found[2]] if found and found[2] in _UNITS else None


@functools.lru_cache(maxsize=1024)
def _is_currency(text: str) -> bool:
    return re.fullmatch(r"[A-Z]{3}", text) is not None
