"""Fine-tuning on conversations: which tokens are targets, packing, and equal losses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads.conversations import (
    chat,
    conversations,
    make,
    targets_by_hand,
    unmarked,
    workload,
)
from trainfleet.errors import InputError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.document_masks import documents
from trainfleet.training.workloads.lm.packing import best_fit
from trainfleet.training.workloads.lm.workload import LanguageModel

__all__ = ["chat", "make", "unmarked", "workload"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("template", ["chat", "unmarked"])
def test_the_loss_is_that_of_the_answers_by_hand(
    workload: Callable[..., LanguageModel],
    request: pytest.FixtureRequest,
    template: str,
    packing: bool,
) -> None:
    """With a template that marks the answers and one that does not, of conversations one by one."""
    name: Path = request.getfixturevalue(template)
    rows = conversations(60)
    found = workload(
        rows,
        f"workload.model.pretrained={name}",
        f"workload.data.conversations.packing={str(packing).lower()}",
    )
    torch.manual_seed(1)
    model = found.build_model().eval()
    total, count, right = 0.0, 0, 0
    with torch.no_grad():
        for row in rows:
            pairs = list(targets_by_hand(name, row["messages"]))
            logits: torch.Tensor = model(torch.tensor([[first for first, _, _ in pairs]]))[0]
            chosen = torch.tensor([counts for _, _, counts in pairs])
            targets = torch.tensor([second for _, second, _ in pairs])
            total += float(F.cross_entropy(logits[chosen], targets[chosen], reduction="sum"))
            right += int((logits.argmax(-1) == targets)[chosen].sum())
            count += int(chosen.sum())
        outputs = [
            found.forward_loss(model, found.batch(split, [index]))
            for split in ("train", "validation", "test")
            for index in range(found.size(split))
        ]
    assert sum(float(each.num_targets) for each in outputs) == count
    assert sum(float(each.loss) for each in outputs) == pytest.approx(total, rel=1e-5)
    accuracy = [each.metric_sums["accuracy"] for each in outputs]
    assert (sum(int(a) for a, _ in accuracy), sum(int(b) for _, b in accuracy)) == (right, count)


def test_the_number_of_targets_of_a_global_batch_is_that_of_its_micro_batches(
    workload: Callable[..., LanguageModel],
) -> None:
    found = workload(conversations(60))
    model = found.build_model()
    indices = list(range(found.size("train")))
    parts = [indices[:2], indices[2:3], indices[3:]]
    counts = [float(found.forward_loss(model, found.batch("train", part)).num_targets) for part in parts]
    assert [found.num_targets("train", part) for part in parts] == counts
    assert found.num_targets("train", indices) == sum(counts)


ARCHITECTURES = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "gpt2": {},
    "mistral": {"sliding_window": 6, "head_dim": 16},
    "gemma3_text": {"sliding_window": 6, "head_dim": 16},
}


def architecture(kind: str, more: dict[str, Any]) -> dict[str, Any]:
    if kind == "gpt2":
        return {"n_embd": 32, "n_layer": 2, "n_head": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, **heads, **more}


def from_scratch(kind: str, tokenizer: Path, config: dict[str, Any]) -> str:
    model = {"architecture": kind, "tokenizer": str(tokenizer), "context": 64, "config": config}
    return f"workload.model={json.dumps(model)}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_conversations_have_the_logits_of_each_alone(
    workload: Callable[..., LanguageModel], chat: Path, kind: str
) -> None:
    rows = conversations(60)
    settings = from_scratch(kind, chat, architecture(kind, ARCHITECTURES[kind]))
    found = workload(rows, settings)
    torch.manual_seed(1)
    model: Any = found.build_model().eval()
    several = 0
    with torch.no_grad():
        for index in range(found.size("train")):
            batch = found.batch("train", [index])
            logits = model(batch["inputs"], batch["positions"])[0]
            starts = [place for place, at in enumerate(batch["positions"][0].tolist()) if at == 0]
            several += len(starts) > 2
            for start, end in zip(starts, [*starts[1:], 64], strict=True):
                alone = model(batch["inputs"][:, start:end])[0]
                torch.testing.assert_close(logits[start:end], alone, atol=1e-5, rtol=1e-4)
    assert several > 3
    # The comparison can fail: without positions, documents attend to one another.
    assert not torch.allclose(model(batch["inputs"])[0], logits, atol=1e-3)


def test_documents_are_numbered_as_transformers_does() -> None:
    from transformers import masking_utils

    positions = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])

    def found() -> Any:
        numbers = masking_utils.find_packed_sequence_indices(positions)
        return None if numbers is None else numbers.tolist()

    expected = [[0, 0, 0, 1, 1, 2], [0] * 6]
    assert found() == expected
    with documents(packed=True):
        assert found() == expected
        with documents(packed=False):
            assert found() is None
    assert found() == expected


def test_a_model_that_ignores_documents_is_rejected_with_packing(
    workload: Callable[..., LanguageModel], chat: Path
) -> None:
    size: dict[str, Any] = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2}
    size["num_attention_heads"] = 2
    size["word_embed_proj_dim"] = 32
    opt = from_scratch("opt", chat, size)
    packed = workload(conversations(60), opt)
    with pytest.raises(InputError, match=r"packing: `opt` computes with the other documents"):
        packed.check_model(packed.build_model())
    single = workload(conversations(60), opt, "workload.data.conversations.packing=false")
    single.check_model(single.build_model())


def test_packing_keeps_each_conversation_once_and_whole(workload: Callable[..., LanguageModel]) -> None:
    rows = conversations(80, turns=1)
    packed, single = workload(rows), workload(rows, "workload.data.conversations.packing=false")

    def documents(found: LanguageModel) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        all_of = []
        for block in found.files.blocks["train"].scan():
            for row in range(len(block["tokens"])):
                start = 0
                for length in block["documents"][row].tolist():
                    part = slice(start, start + length)
                    all_of.append(
                        (
                            tuple(block["tokens"][row][part].tolist()),
                            tuple(block["answers"][row][part].tolist()),
                        )
                    )
                    start += length
        return sorted(all_of)

    assert documents(packed) == documents(single)
    assert packed.size("train") < 0.7 * single.size("train")


def test_bins_are_full_and_hold_each_size_once() -> None:
    rng = random.Random(3)
    sizes = [rng.randint(1, 100) for _ in range(500)]
    bins = best_fit(sizes, 100)
    assert sorted(place for each in bins for place in each) == list(range(500))
    totals = [sum(sizes[place] for place in each) for each in bins]
    assert max(totals) <= 100
    assert len(bins) <= sum(sizes) / 100 * 1.06
    assert bins == best_fit(sizes, 100)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lora", ["null", "{rank: 4, targets: [q_proj, v_proj]}"])
def test_a_fine_tuning_is_stopped_resumed_and_ends_with_the_same_bits(
    make: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path, lora: str
) -> None:
    recipe = make(conversations(80), f"workload.model.lora={lora}")
    whole = run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", should_stop=StopAfter(3))
    parts = run(recipe, tmp_path / "parts")
    assert parts.resumed_from == 3
    assert parts.metrics == whole.metrics
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert losses == metric_values(rows_of(tmp_path / "parts"), "loss")
    assert losses[-1] < (0.9 if lora == "null" else 1.0) * losses[0]
    assert "bigram_nats_per_byte" in whole.baseline


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_of_other_sizes_give_the_same_losses(
    make: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path, micro_batch: int
) -> None:
    """Samples have different numbers of targets, so means of means would differ."""
    losses = []
    for size in (6, micro_batch):
        recipe = make(conversations(80), f"batch.micro_batch={size}", "steps=4")
        run(recipe, tmp_path / f"run{size}")
        rows = rows_of(tmp_path / f"run{size}")
        losses.append(metric_values(rows, "loss") + metric_values(rows, "validation/loss", "validation"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.deep
def test_ranks_give_the_losses_of_one(
    make: Callable[..., Recipe],
    run: Callable[..., RunResult],
    run_ranks: Callable[..., list[int]],
    tmp_path: Path,
) -> None:
    recipe = make(conversations(80), "steps=4")
    run(recipe, tmp_path / "one")
    assert run_ranks(recipe, tmp_path / "two", 2) == [0, 0]
    one, two = (
        metric_values(rows_of(tmp_path / each), "loss")
        + metric_values(rows_of(tmp_path / each), "validation/loss", "validation")
        for each in ("one", "two")
    )
    assert one == pytest.approx(two, rel=1e-5)
