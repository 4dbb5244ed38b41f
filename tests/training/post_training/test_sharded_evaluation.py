"""A model trained in shards is evaluated in shards: with the metrics of one process, and a share of its memory
and of its reads.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.training.conftest import run_ranks  # noqa: F401 - a fixture
from tests.training.ranks import start_ranks
from trainfleet.training.evaluate import evaluate, work
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.stores import Store

LAYERS, WIDTH = 8, 512
LARGE = {"layers": LAYERS, "width": WIDTH, "heads": 8}


class AllocatedBytes(TorchDispatchMode):
    """The most bytes that the storages of tensors had at one time, without those on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._live = 0, dict[int, weakref.ref[torch.UntypedStorage]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its operations on local tensors come here
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, found)):
            if isinstance(each, torch.Tensor) and not isinstance(each, DTensor) and each.device.type == "cpu":
                storage = each.untyped_storage()
                self._live[id(storage)] = weakref.ref(storage)
        alive = {key: storage for key, ref in self._live.items() if (storage := ref()) is not None}
        self._live = {key: self._live[key] for key in alive}
        self.peak = max(self.peak, sum(each.nbytes() for each in alive.values()))
        return found


@pytest.fixture
def trained(
    recipe: Recipe,
    run_ranks: Callable[..., list[int]],  # noqa: F811 - the fixture
    tmp_path: Path,
) -> Callable[..., Path]:
    """Trains on two ranks with fsdp, with these settings of the model and of the recipe; the run's folder."""

    def train(model: dict[str, Any], **changes: Any) -> Path:
        document = recipe.model_dump(mode="json") | {"strategy": "fsdp"} | changes
        document["workload"] = document["workload"] | {"model": document["workload"]["model"] | model}
        assert run_ranks(Recipe.model_validate(document), tmp_path / "run", 2) == [0, 0]
        return tmp_path / "run"

    return train


def on_ranks(run: Path, ranks: int, out: Path, **job: Any) -> list[dict[str, Any]]:
    """What each rank finds, with the bytes that it allocated and read."""
    asked = {"source": str(run), "split": "test", "which": "newest", "samples": 13, **job}

    def rank(number: int) -> None:
        whole, read = Store.read, [0]

        def counted(store: Store, path: str, *place: Any) -> bytes:
            content = whole(store, path, *place)
            read[0] += len(content) if path.endswith(".distcp") else 0
            return content

        Store.read = counted  # type: ignore[method-assign]  # to count
        with AllocatedBytes() as allocated:
            found = work(asked, lambda *_, **__: None)
        counts = {"allocated": allocated.peak, "read": read[0]}
        (out / f"rank{number}.json").write_text(json.dumps(found | counts))

    assert start_ranks(rank, ranks) == [0] * ranks
    return [json.loads((out / f"rank{number}.json").read_text()) for number in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])  # 4 + 4 + 4 + 1 samples: 2 and 2 batches, or 2, 1 and 1
@pytest.mark.deep
def test_metrics_are_those_of_one_process(trained: Callable[..., Path], tmp_path: Path, ranks: int) -> None:
    run = trained({"layers": 3}, ema={"decay": 0.9})
    alone = evaluate(str(run), "test", "newest", samples=13)
    for found in on_ranks(run, ranks, tmp_path):
        assert found["metrics"] == pytest.approx(alone.metrics, rel=1e-6)
        assert (found["samples"], found["workers"]) == (13, ranks)


@pytest.mark.deep
def test_a_rank_allocates_and_reads_its_share(trained: Callable[..., Path], tmp_path: Path) -> None:
    run = trained(LARGE, steps=1, batch={"global_batch": 4, "micro_batch": 2})
    alone = evaluate(str(run), "test", "newest", samples=13)
    block = 12 * WIDTH * WIDTH * 4
    whole = LAYERS * block
    assert whole > 100e6
    for found in on_ranks(run, 2, tmp_path):
        # A block that computes, what is gathered for it, and the embedding; the rest are activations.
        assert found["allocated"] < whole / 2 + 3 * block
        assert found["read"] < 0.55 * whole
        assert found["metrics"] == pytest.approx(alone.metrics, rel=1e-6)
