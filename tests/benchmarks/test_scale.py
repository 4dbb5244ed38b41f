"""How costs grow with the number of ranks, as docs/scale.md says: counted in a fake process group."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import scale

FEW, MANY = 16, 64
"""Two machines and more: on a single machine, hsdp has two replicas."""


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    # A width that all ranks divide: fsdp gives a rank whole rows.
    changes = ("batch.micro_batch=1", f"workload.model.width={MANY}")
    found: dict[str, dict[str, Any]] = scale.measure("lm-tiny", (FEW, MANY), changes)["rows"]
    return found


def growth(rows: dict[str, dict[str, Any]], strategy: str, cost: str) -> float:
    """How many times as much it is with four times as many ranks."""
    return float(rows[f"{strategy}, {MANY} ranks"][cost] / rows[f"{strategy}, {FEW} ranks"][cost])


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_the_collectives_of_a_step_do_not_depend_on_the_number_of_ranks(
    rows: dict[str, dict[str, Any]], strategy: str
) -> None:
    few, many = (rows[f"{strategy}, {ranks} ranks"] for ranks in (FEW, MANY))
    assert few["collectives of a step"] > 1
    for cost in ("collectives of a start", "collectives of a step"):
        assert few[cost] == many[cost]
    assert many["MiB received in a step"] < 1.5 * few["MiB received in a step"]


def test_a_rank_keeps_its_share_only_where_the_model_is_sharded(rows: dict[str, dict[str, Any]]) -> None:
    assert growth(rows, "ddp", "MiB kept") == 1
    assert growth(rows, "fsdp", "MiB kept") == pytest.approx(MANY**-1 * FEW, rel=0.1)
    # hsdp has a replica on each machine: the share depends on the ranks of a machine alone.
    assert growth(rows, "hsdp", "MiB kept") == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_what_rank_0_does_for_a_checkpoint_grows_at_most_with_the_number_of_ranks(
    rows: dict[str, dict[str, Any]], strategy: str
) -> None:
    linear = MANY / FEW * 1.1
    for cost in ("KiB gathered by rank 0 for a plan", "KiB of .metadata", "KiB of plain.pt", "objects"):
        assert growth(rows, strategy, cost) <= linear, cost
    assert growth(rows, strategy, "parts of rank 0") <= 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_rank_0_alone_reads_what_grows_with_the_number_of_ranks(
    rows: dict[str, dict[str, Any]], strategy: str
) -> None:
    for ranks in (FEW, MANY):
        row = rows[f"{strategy}, {ranks} ranks"]
        described = sum(row[f"KiB of {part}"] for part in (".metadata", "plain.pt", "the marker"))
        assert row["KiB read from the store by rank 0, to resume"] == pytest.approx(described)
        assert row["by each other rank"] == 0
        assert row["by all ranks"] == pytest.approx(described)
