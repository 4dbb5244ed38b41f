"""FOCUS exports are read row by row, in each form that clouds write; every mistake is named with its line."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cost.bills import COLUMNS, EC2, Row, row, tags, write_csv
from trainfleet.cost.focus import MOST_PROBLEMS, Charge, charges, tag_key
from trainfleet.errors import InputError


def read(file: Path) -> list[Charge]:
    return list(charges([file]))


ONE = row(2.5, EC2, "an instance", tags("a10g"), ConsumedQuantity=3, ConsumedUnit="Hrs")


def test_a_csv_is_read(tmp_path: Path) -> None:
    (charge,) = read(write_csv(tmp_path / "bill.csv", [ONE]))
    assert (charge.billed, charge.hours, charge.service) == (2.5, 3.0, EC2)
    assert charge.tags["trainfleet-platform"] == "prod"
    assert charge.start == datetime(2026, 11, 1, tzinfo=UTC)
    assert "an instance" in charge.text


def test_a_gzip_is_read(tmp_path: Path) -> None:
    plain = write_csv(tmp_path / "bill.csv", [ONE, ONE])
    packed = tmp_path / "bill.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed) == read(plain)


@pytest.mark.parametrize("form", ["map", "json", "pairs"])
def test_a_parquet_file_is_read_as_its_csv(form: str, tmp_path: Path) -> None:
    plain = read(write_csv(tmp_path / "bill.csv", [ONE]))
    owned = tags("a10g")
    values: dict[str, Any] = {
        "map": pa.array([list(owned.items())], pa.map_(pa.string(), pa.string())),
        "json": pa.array([ONE["Tags"]]),
        "pairs": pa.array([[{"key": key, "value": value} for key, value in owned.items()]]),
    }
    columns = {name: pa.array([str(ONE[name])]) for name in COLUMNS}
    columns |= {
        "BilledCost": pa.array([2.5]),
        "EffectiveCost": pa.array([2.5]),
        "ConsumedQuantity": pa.array([3.0]),
        "ChargePeriodStart": pa.array([datetime(2026, 11, 1)], pa.timestamp("ms")),
        "ChargePeriodEnd": pa.array([datetime(2026, 11, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "Tags": values[form],
    }
    file = tmp_path / "bill.parquet"
    pq.write_table(pa.table(columns), file)
    assert read(file) == plain


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("trainfleet:owner", "trainfleet-owner"),
        ("user:trainfleet:owner", "trainfleet-owner"),
        ("user_trainfleet_owner", "trainfleet-owner"),
        ("resourceTags/user:trainfleet:owner", "trainfleet-owner"),
        ("trainfleet-owner", "trainfleet-owner"),
        ("userland", "userland"),
    ],
)
def test_a_key_is_found_in_every_scheme(key: str, expected: str) -> None:
    assert tag_key(key) == expected


def test_units_of_time_become_hours(tmp_path: Path) -> None:
    units = {"Hours": 2.0, "Hrs": 2.0, "hour": 2.0, "seconds": 2 / 3600, "100 Hours": 200.0, "1 Hour": 2.0}
    rows = [
        {**ONE, "ConsumedQuantity": 2, "ConsumedUnit": unit} for unit in (*units, "GB-Mo", "vCPU-Hours", "")
    ]
    found = [charge.hours for charge in read(write_csv(tmp_path / "bill.csv", rows))]
    assert found == [*units.values(), None, None, None]


# ---- mistakes


MISTAKES: list[tuple[Row, str]] = [
    ({"BilledCost": "1,5"}, "BilledCost: '1,5' is not a number"),
    ({"EffectiveCost": ""}, "EffectiveCost: '' is not a number"),
    ({"EffectiveCost": "nan"}, "EffectiveCost: 'nan' is not a number"),
    ({"ConsumedQuantity": "many"}, "ConsumedQuantity: 'many' is not a number"),
    ({"ChargePeriodStart": "yesterday"}, "ChargePeriodStart: 'yesterday' is not a time"),
    ({"ChargePeriodEnd": "2026-10-01T00:00:00Z"}, "is before its start"),
    ({"ChargeCategory": "usage"}, "ChargeCategory: 'usage' is not one of"),
    ({"BillingCurrency": "$"}, "BillingCurrency: '$' is not a currency"),
    ({"Tags": "team=ml"}, "Tags: 'team=ml' is not a JSON object"),
    ({"Tags": "[1]"}, "Tags: '[1]' is not a JSON object"),
]


@pytest.mark.parametrize(("values", "what"), MISTAKES, ids=[each[1] for each in MISTAKES])
def test_a_wrong_value_is_one_message_with_its_line(values: Row, what: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "bill.csv", [ONE, {**ONE, **values}, ONE])
    with pytest.raises(InputError) as caught:
        read(file)
    (problem,) = caught.value.problems
    assert problem.where == f"{file}:3"
    assert what in problem.what


def test_mistakes_are_reported_together_and_not_without_end(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "bill.csv", [{**ONE, "BilledCost": "x"}] * 50)
    with pytest.raises(InputError) as caught:
        read(file)
    assert len(caught.value.problems) == MOST_PROBLEMS


def text(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "bill.csv"
    file.write_bytes(content)
    return file


HEADER = ",".join(COLUMNS).encode()
FILES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "is empty"),
    ("one value too many", HEADER + b"\n" + b"1," * 14 + b"1\n", "has 15 values, and the header 14 columns"),
    ("open quote", HEADER + b'\n"1,2\n', "is not CSV"),
    ("another encoding", HEADER + b"\n\xff\xfe\n", "is not UTF-8 text"),
    ("a report of AWS", b"lineItem/UnblendedCost,bill/PayerAccountId\n", "is a cost and usage report of AWS"),
    ("another table", b"a,b\n1,2\n", "has no columns BilledCost"),
    ("a ZIP archive", b"PK\x03\x04", "is a ZIP archive"),
    ("a cut gzip", gzip.compress(HEADER * 100)[:-20], "ended before"),
    ("a cut Parquet file", b"PAR1abc", "is a damaged Parquet file"),
    ("a misspelt column", HEADER.replace(b"BilledCost", b"billedcost"), "has no column BilledCost"),
    ("a repeated column", HEADER + b",Tags", "has the column Tags twice"),
]


@pytest.mark.parametrize(("name", "content", "what"), FILES, ids=[each[0] for each in FILES])
def test_a_wrong_file_is_one_message(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(text(tmp_path, content))
    (problem,) = caught.value.problems
    assert what in problem.what


@pytest.mark.deep
def test_damaged_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    """A thousand damaged files of each form are either read or refused with a message."""
    plain = write_csv(tmp_path / "bill.csv", [ONE] * 3).read_bytes()
    table = pa.table({name: pa.array([str(ONE[name])] * 3) for name in COLUMNS})
    pq.write_table(table, tmp_path / "bill.parquet")
    draw = random.Random(0)
    outcomes: set[bool] = set()
    for whole in (plain, gzip.compress(plain, mtime=0), (tmp_path / "bill.parquet").read_bytes()):
        for _ in range(1000):
            damaged = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            cut = draw.randrange(len(damaged)) if draw.random() < 0.2 else len(damaged)
            file = text(tmp_path, bytes(damaged[:cut]))
            try:
                outcomes.add(bool(read(file)))
            except InputError as error:
                outcomes.add(not error.problems)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Tags", "[" * 100_000),
        ("ChargePeriodStart", "0001-01-01T00:00:00+14:00"),
        ("ChargePeriodEnd", "9999-12-31"),
    ],
)
def test_extreme_values_are_one_message(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=name):
        read(write_csv(tmp_path / "bill.csv", [{**ONE, name: value}]))


def test_a_file_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "bill.csv", [ONE])
    with pytest.raises(InputError, match="given twice"):
        list(charges([file, tmp_path / "." / "bill.csv"]))


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "none.csv")


def test_parquet_without_pyarrow_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainfleet.errors import MissingToolError

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "bill.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(MissingToolError, match="pyarrow"):
        read(file)


_MEASURE = """
import resource, sys
from pathlib import Path
from trainfleet.cost.bill import Owners, add_up
from trainfleet.cost.focus import charges
from trainfleet.infra.spec.load import load_stack
totals = add_up(charges([Path(sys.argv[1])]), Owners(load_stack("aws-prod"), "aws-prod"))
print(totals.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak(file: Path) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(file)], capture_output=True, text=True, check=True
    )
    rows, kib = map(int, done.stdout.split())
    return rows, kib


@pytest.mark.parametrize("rows", [pytest.param(30_000), pytest.param(1_000_000, marks=pytest.mark.deep)])
def test_the_memory_does_not_grow_with_the_bill(rows: int, tmp_path: Path) -> None:
    """Each row has another resource and description, so nothing can be shared between them."""

    def bill(count: int) -> Path:
        lines = (
            {**ONE, "ResourceId": f"i-{number}", "ChargeDescription": f"instance {number}"}
            for number in range(count)
        )
        return write_csv(tmp_path / f"{count}.csv", lines)

    few, many = _peak(bill(100)), _peak(bill(rows))
    assert (few[0], many[0]) == (100, rows)
    assert many[1] - few[1] < 64 * 1024
