"""`predict --shard`: the predictions of one process, with a share of the model per rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import run_ranks  # noqa: F401 - a fixture
from tests.training.post_training.test_sharded_evaluation import (
    AllocatedBytes,
    trained,  # noqa: F401 - a fixture
)
from tests.training.ranks import start_ranks
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.inference.predict import Request, predict
from trainfleet.training.inference.predict_ranks import work
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.stores import Store

LAYERS, WIDTH = 8, 256
PROMPTS = ("the gradient of", "a", "tensor sums the step of the loss", "", "rank", "café loss the", "step by")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in PROMPTS))
    return tmp_path / "prompts.jsonl"


def job_of(run: Path, rows: Path, output: Path, **changes: Any) -> dict[str, Any]:
    fixed = {"which": "newest", "batch": 3, "workers": 0, "settings": {"max_tokens": 12, "top_k": 5}}
    return {"source": str(run), "input": str(rows), "output": str(output), **fixed, **changes}


def on_ranks(job: dict[str, Any], out: Path, ranks: int) -> list[dict[str, Any]]:
    """The manifest of each rank, with the bytes that it allocated and read."""

    def rank(number: int) -> None:
        whole, read = Store.read, [0]

        def counted(store: Store, path: str, *place: Any) -> bytes:
            content = whole(store, path, *place)
            read[0] += len(content) if path.endswith(".distcp") else 0
            return content

        Store.read = counted  # type: ignore[method-assign]  # to count
        with AllocatedBytes() as allocated:
            found = work(job, lambda *_, **__: None)
        counts = {"allocated": allocated.peak, "read": read[0]}
        (out / f"rank{number}.json").write_text(json.dumps(found | counts))

    assert start_ranks(rank, ranks, 240) == [0] * ranks
    return [json.loads((out / f"rank{number}.json").read_text()) for number in range(ranks)]


def lines(output: Path) -> list[dict[str, Any]]:
    paths = sorted(output.glob("part-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.deep
def test_the_texts_of_shards_are_those_of_the_whole_model(
    trained: Callable[..., Path],  # noqa: F811 - the fixture
    prompts: Path,
    tmp_path: Path,
) -> None:
    """Texts end at different lengths, and the ranks take the same steps nevertheless."""
    run = trained({"layers": 3})
    predict(Request(**job_of(run, prompts, tmp_path / "alone")))
    on_ranks(job_of(run, prompts, tmp_path / "shards", shard=True), tmp_path, 2)
    assert lines(tmp_path / "shards") == lines(tmp_path / "alone")
    assert [each["input"]["text"] for each in lines(tmp_path / "shards")] == list(PROMPTS)


@pytest.mark.deep
def test_a_rank_allocates_and_reads_its_share(
    trained: Callable[..., Path],  # noqa: F811 - the fixture
    prompts: Path,
    tmp_path: Path,
) -> None:
    model = {"layers": LAYERS, "width": WIDTH, "heads": 4}
    run = trained(model, steps=1, batch={"global_batch": 4, "micro_batch": 2})
    block = 12 * WIDTH * WIDTH * 4
    whole = LAYERS * block
    prompts.write_text(json.dumps({"text": PROMPTS[0]}) + "\n")  # counting is slow
    job = job_of(run, prompts, tmp_path / "out", shard=True, settings={"max_tokens": 2})
    for found in on_ranks(job, tmp_path, 2):
        assert found["rows"] == 1
        # A block that computes, what is gathered for it, and the embedding; the rest are activations.
        assert found["allocated"] < whole / 2 + 3 * block
        assert found["read"] < 0.55 * whole


@pytest.mark.deep
def test_a_pretrained_model_generates_in_shards(
    recipe: Recipe,
    run_ranks: Callable[..., list[int]],  # noqa: F811 - the fixture
    prompts: Path,
    tmp_path: Path,
) -> None:
    """transformers' `generate` calls the inner model, and not the forward pass of the root."""
    document = recipe.model_dump(mode="json") | {"strategy": "fsdp", "steps": 2}
    folder = models.causal(tmp_path / "model")
    model = {"pretrained": str(folder), "context": 32}
    data = document["workload"]["data"] | {"tokens": "model"}
    document["workload"] = {"name": "lm", "model": model, "data": data}
    document["sharding"] = document["sharding"] | {"meta_init": False}
    assert run_ranks(Recipe.model_validate(document), tmp_path / "run", 2) == [0, 0]
    predict(Request(**job_of(tmp_path / "run", prompts, tmp_path / "alone")))
    on_ranks(job_of(tmp_path / "run", prompts, tmp_path / "shards", shard=True), tmp_path, 2)
    assert lines(tmp_path / "shards") == lines(tmp_path / "alone")


@pytest.mark.deep
def test_the_command_starts_the_ranks(run_dir: Path, prompts: Path, tmp_path: Path) -> None:
    """Also of a model that was trained whole."""
    predict(Request(**job_of(run_dir, prompts, tmp_path / "alone")))
    job = job_of(run_dir, prompts, tmp_path / "shards", workers=2, shard=True)
    manifest = predict(Request(**job))
    assert manifest["rows"] == len(PROMPTS)
    assert lines(tmp_path / "shards") == lines(tmp_path / "alone")


@pytest.mark.parametrize("workers", [0, 1, None])
def test_one_process_divides_no_model(
    run_dir: Path, prompts: Path, tmp_path: Path, workers: int | None
) -> None:
    job = job_of(run_dir, prompts, tmp_path / "out", workers=workers, shard=True)
    with pytest.raises(InputError, match="--workers 2 or more"):
        predict(Request(**job))
