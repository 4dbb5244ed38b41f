"""Metrics: exact over ranks with unequal batches, and throughput and MFU by their formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.training.ranks import start_ranks
from trainfleet.errors import InputError
from trainfleet.training.runtime import process_group
from trainfleet.training.trainer.metrics import MetricsManager, Throughput, peak_flops
from trainfleet.training.trainer.torchmetrics_compat import Metric
from trainfleet.training.workloads import StepOutput

BATCHES = [(3.5, 1), (20.0, 7), (1.25, 2), (9.0, 3), (0.1, 1)]
"""Sums and weights. The mean of the means is another value."""


def outcome(total: float, weight: int) -> StepOutput:
    return StepOutput(
        torch.tensor(total), weight, {"extra": (torch.tensor(2 * total), torch.tensor(weight + 1))}
    )


def expected() -> dict[str, float]:
    totals = [float(torch.tensor(total)) for total, _ in BATCHES]
    weight = sum(weight for _, weight in BATCHES)
    return {"loss": sum(totals) / weight, "extra": 2 * sum(totals) / (weight + len(BATCHES))}


def test_a_mean_is_the_sum_over_the_weight() -> None:
    metrics = MetricsManager(["extra"])
    for batch in BATCHES:
        metrics.update(outcome(*batch))
    assert metrics.compute() == pytest.approx(expected(), rel=1e-14)
    metrics.reset()
    metrics.update(outcome(8.0, 4))
    assert metrics.compute()["loss"] == 2.0


@pytest.mark.parametrize("world_size", [2, 3])
def test_means_over_ranks_with_unequal_batches_are_exact(tmp_path: Path, world_size: int) -> None:
    def work(rank: int) -> None:
        process_group.init_from_env(use_gpu=False)
        metrics = MetricsManager(["extra"])
        for batch in BATCHES if rank == 0 else []:  # the other ranks have no samples
            metrics.update(outcome(*batch))
        alone = metrics.compute()
        metrics.reset()
        for batch in BATCHES[rank::world_size]:
            metrics.update(outcome(*batch))
        (tmp_path / str(rank)).write_text(json.dumps([alone, metrics.compute()]))
        process_group.shutdown()

    assert start_ranks(work, world_size) == [0] * world_size
    for rank in range(world_size):
        for found in json.loads((tmp_path / str(rank)).read_text()):
            assert found == pytest.approx(expected(), rel=1e-14)


PREDICTED = torch.tensor([0, 1, 2, 2, 1, 0, 0, 2, 1])
TARGETS = torch.tensor([0, 1, 1, 2, 0, 0, 2, 2, 1])
SCORES = torch.tensor([0.1, 0.9, 0.4, 0.35, 0.8, 0.65, 0.3, 0.7, 0.2])
CUTS = [(0, 4), (4, 5), (5, 9)]
"""Uneven batches. With more ranks than batches, a rank has no samples."""


def collection() -> dict[str, Metric]:
    from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassF1Score
    from torchmetrics.text import WordErrorRate

    return {
        "accuracy": MulticlassAccuracy(3, average="micro"),
        "f1": MulticlassF1Score(3),
        "auroc": BinaryAUROC(),
        "wer": WordErrorRate(),
    }


def seen(first: int, last: int) -> StepOutput:
    hypotheses = [f"das ist satz {number}" for number in PREDICTED[first:last].tolist()]
    references = [f"das ist satz {number}" for number in TARGETS[first:last].tolist()]
    ours = {
        "accuracy": (PREDICTED[first:last], TARGETS[first:last]),
        "f1": (PREDICTED[first:last], TARGETS[first:last]),
        "auroc": (SCORES[first:last], (TARGETS[first:last] > 0).int()),
        "wer": (hypotheses, references),
    }
    return StepOutput(torch.tensor(1.0), 1, {}, ours)


def in_one_go() -> dict[str, float]:
    whole = collection()
    for name, arguments in seen(0, 9).metric_inputs.items():
        whole[name].update(*arguments)
    return {name: float(metric.compute()) for name, metric in whole.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_torchmetrics_over_ranks_equal_those_of_all_samples_at_once(tmp_path: Path, world_size: int) -> None:
    def work(rank: int) -> None:
        process_group.init_from_env(use_gpu=False)
        metrics = MetricsManager([], collection=collection())
        for cut in CUTS[rank::world_size]:
            metrics.update(seen(*cut))
        resumed = MetricsManager([], collection=collection())
        resumed.load_state(metrics.state())
        (tmp_path / str(rank)).write_text(
            json.dumps([metrics.compute(), metrics.compute(), resumed.compute()])
        )
        process_group.shutdown()

    assert start_ranks(work, world_size) == [0] * world_size
    for rank in range(world_size):
        for found in json.loads((tmp_path / str(rank)).read_text()):
            assert found == pytest.approx({"loss": 1.0, **in_one_go()}, rel=1e-6)


def test_the_states_of_three_ranks_are_restored_on_one() -> None:
    parts = []
    for cut in CUTS:
        part = MetricsManager([], collection=collection())
        part.update(seen(*cut))
        parts.append(part.state())
    alone = MetricsManager([], collection=collection())
    alone.load_state(*parts, MetricsManager([], collection=collection()).state())
    assert alone.compute() == pytest.approx({"loss": 1.0, **in_one_go()}, rel=1e-6)


def test_an_empty_metric_is_left_out_and_one_that_cannot_be_summed_is_rejected() -> None:
    assert MetricsManager(["extra"], collection=collection()).compute() == {}

    class Whole(Metric):
        full_state_update = True

        def update(self) -> None: ...

        def compute(self) -> None: ...

    with pytest.raises(InputError, match=r"spread.*cannot be merged"):
        MetricsManager([], collection={"spread": Whole()})


def test_a_checkpointed_interval_resumes_exactly() -> None:
    whole, first, second = MetricsManager(["extra"]), MetricsManager(["extra"]), MetricsManager(["extra"])
    for place, batch in enumerate(BATCHES):
        whole.update(outcome(*batch))
        (first if place < 3 else second).update(outcome(*batch))
        if place == 2:
            second.load_state(first.state())
    assert second.compute() == whole.compute()


def test_a_state_in_a_checkpoint_does_not_change_with_later_batches() -> None:
    manager, restored = (
        MetricsManager([], collection=collection()),
        MetricsManager([], collection=collection()),
    )
    manager.update(seen(0, 4))
    state, before = manager.state(), manager.compute()
    manager.update(seen(4, 9))
    restored.load_state(state)
    assert manager.compute() != before
    assert restored.compute() == before


def test_throughput_and_mfu_follow_their_formulas() -> None:
    figures = Throughput(compute=4.0, data=1.0, saving=0.5, samples=40, steps=8).rates(
        sample_tokens=100, flops_per_token=6.0, peak=60_000.0
    )
    assert figures == {
        "samples_per_second": 10.0,
        "tokens_per_second": 1000.0,
        "mfu": 0.1,
        "data_wait": 0.25,
        "step_seconds": 0.5,
        "checkpoint_seconds": 0.5,
        "validation_seconds": 0.0,
    }
    assert Throughput().rates(100, 6.0, None)["mfu"] is None
    assert Throughput(compute=4.0, steps=8).rates(100, 6.0, None, sync=0.1)["communication"] == 0.2


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
    ],
)
def test_similar_names_of_gpus_have_peaks_of_their_own(
    monkeypatch: pytest.MonkeyPatch, name: str, peak: float
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops("cuda:0", 1, "bf16") == peak


def test_the_peak_is_that_of_the_gpu_times_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda,
        "get_device_name",
        lambda device: {"cuda:0": "NVIDIA H100 PCIe", "cuda:1": "Unheard Of"}[device],
    )
    assert peak_flops("cuda:0", 4, "bf16") == 4 * 756e12
    assert [
        peak_flops("cuda:1", 1, "bf16"),
        peak_flops("cuda:0", 1, "fp32"),
        peak_flops("cpu", 1, "bf16"),
    ] == [None] * 3
