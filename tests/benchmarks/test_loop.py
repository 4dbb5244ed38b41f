"""The loops that the step loop is compared with do the same work: their losses are the run's."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import loop
from trainfleet.errors import TrainfleetError

SHARDED = (
    "strategy=fsdp",
    "sharding.meta_init=true",
    "activation_checkpointing=selective",
    "compile=true",
    "workload.model.layers=2",
)


@pytest.mark.deep
def test_the_smoke_run_compares_all_loops_on_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    # 16 samples in micro batches of 4: two turns per rank, so that the exchange of gradients is part of it.
    document: dict[str, Any] = loop.measure("lm-tiny", 12)
    assert document["not_measured"] == {}
    assert set(document["ratio"]) == {"minimal", "fabric", "nanogpt"}
    assert document["steps"] == 12 - 1 - loop.WARM_UP
    loop.show(document)
    shown = capsys.readouterr().out
    for name in ("minimal loop", "Lightning Fabric", "nanoGPT-style loop"):
        assert f"| step loop / {name} | {document['ratio'][_key(name)]['median']:.4f} |" in shown


def _key(shown: str) -> str:
    return next(key for key, name in loop.NAMES.items() if name == shown)


@pytest.mark.deep
@pytest.mark.parametrize("changes", [SHARDED, ("compile=true", "workload.model.layers=2")])
def test_compiled_and_sharded_loops_have_the_losses_of_the_run(changes: tuple[str, ...]) -> None:
    found = loop.alternate(
        *("lm-tiny", 15, changes),
        others=("minimal", "torchtitan"),
        world_size=2,
        block=5,
        backend="aot_eager",
    )
    assert found["loss"] == pytest.approx(dict.fromkeys(found["loss"], found["loss"]["ours"]), rel=2e-5)
    assert set(found["loss"]) == {"ours", "minimal", "torchtitan"}
    # Three blocks of each: the first is not counted, and the run's last has no end.
    assert found["steps"] == 5
    assert [len(each) for each in found["pairs"].values()] == [2, 2]


def test_a_loop_that_does_other_work_is_named() -> None:
    loop.check_losses({"ours": 2.0, "minimal": 2.0019}, 1e-3)
    with pytest.raises(TrainfleetError, match=r"the nanoGPT-style loop does other work: its loss is 1\.9"):
        loop.check_losses({"ours": 2.0, "minimal": 2.0, "nanogpt": 1.9}, 1e-3)
    with pytest.raises(TrainfleetError, match="minimal loop"):
        loop.check_losses({"ours": 2.0, "minimal": float("nan")}, 1e-3)
