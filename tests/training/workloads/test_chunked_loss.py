"""The loss of some tokens at a time equals the loss of all, and a step computes no more than it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.training_runs import StopAfter
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.strategies import make_strategy, wrap
from trainfleet.training.workloads import make_workload
from trainfleet.training.workloads.base import IGNORED
from trainfleet.training.workloads.chunked_loss import ChunkedCrossEntropy
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.settings import GptSettings

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
BATCH, LENGTH, WIDTH, VOCABULARY = 3, 7, 8, 50
TOKENS = BATCH * LENGTH
SOME_IGNORED = [0, 5, 6, 7, 8, 20]


def inputs(ignored: list[int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Hidden states [B, T, D], a weight [V, D] and targets [B, T]."""
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, generator=random).to(dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=random).to(dtype)
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=random)
    targets[ignored] = IGNORED
    return hidden, weight, targets.view(BATCH, LENGTH)


def whole(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss from the logits of all tokens."""
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).float(), targets.flatten(), reduction="sum")


def gradients(
    loss: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...], needed: tuple[bool, bool]
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    hidden, weight = (each.clone().requires_grad_(need) for each, need in zip(given[:2], needed, strict=True))
    found = loss(hidden, weight, given[2])
    if any(needed):
        (found * 0.3).backward()  # type: ignore[no-untyped-call]  # torch is partly typed
    return found.detach(), [hidden.grad, weight.grad]


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("ignored", [[], SOME_IGNORED, list(range(TOKENS))], ids=["none", "some", "all"])
@pytest.mark.parametrize("chunk", [1, 4, 7, TOKENS, 1000])
def test_loss_and_gradients_are_those_of_all_logits(
    chunk: int, ignored: list[int], needed: tuple[bool, bool]
) -> None:
    module, given = ChunkedCrossEntropy(chunk), inputs(ignored)
    loss, found = gradients(lambda *each: module(*each)[0], given, needed)
    expected, right = gradients(whole, given, needed)
    torch.testing.assert_close(loss, expected)
    for mine, other in zip(found, right, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("ignored", [[], SOME_IGNORED], ids=["none", "some"])
@pytest.mark.parametrize("chunk", [4, TOKENS])
def test_correct_predictions_are_counted_without_ignored_targets(chunk: int, ignored: list[int]) -> None:
    hidden, weight, targets = inputs(ignored)
    best = F.linear(hidden, weight).argmax(dim=-1)
    places = torch.tensor([0, 1, 3, 12])  # the first one is ignored in `some`
    kept = targets.flatten()[places] != IGNORED
    targets.view(-1)[places[kept]] = best.view(-1)[places[kept]]
    _, correct = ChunkedCrossEntropy(chunk)(hidden, weight, targets, count_correct=True)
    assert int(correct) == int((best == targets).sum()) >= 3
    assert ChunkedCrossEntropy(chunk)(hidden, weight, targets)[1] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_half_precision_the_loss_stays_exact_and_gradients_keep_their_type(dtype: torch.dtype) -> None:
    """fp32 weights below autocast, as with ddp, and bf16 weights, as fsdp gathers them."""
    given, module = inputs(SOME_IGNORED, dtype), ChunkedCrossEntropy(4)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        loss, found = gradients(lambda *each: module(*each)[0], given, (True, True))
        expected, right = gradients(whole, given, (True, True))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    for mine, other in zip(found, right, strict=True):
        assert mine is not None
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)


def test_a_second_backward_pass_is_rejected() -> None:
    hidden, weight, targets = inputs([])
    loss, _ = ChunkedCrossEntropy(4)(hidden.requires_grad_(), weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returns, and how often each is called."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.calls = 0, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls[str(func.overloadpacket)] += 1
        found = result if isinstance(result, tuple | list) else (result,)
        sizes = [each.numel() for each in found if isinstance(each, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


def gpt(chunk: int) -> tuple[Gpt, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = Gpt(GptSettings(layers=1, width=8, heads=2, context=32, loss_chunk=chunk), 1000)
    tokens = torch.randint(1000, (2, 33))
    return model, tokens[:, :-1], tokens[:, 1:]


def test_the_tied_matrix_gets_the_gradients_of_the_embedding_and_of_the_head() -> None:
    model, tokens, targets = gpt(chunk=10)
    F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    expected = {name: each.grad for name, each in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    model(tokens, targets)[0].backward()
    for name, each in model.named_parameters():
        torch.testing.assert_close(each.grad, expected[name], msg=name)


def test_no_tensor_is_as_large_as_the_logits_of_all_tokens() -> None:
    model, tokens, targets = gpt(chunk=10)
    with Largest() as all_at_once:
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    with Largest() as chunked:
        model(tokens, targets)[0].backward()
    assert all_at_once.elements == 64 * 1000
    assert chunked.elements == 10 * 1000  # more than the matrix itself, of 8 x 1,000
    assert chunked.calls["aten.mm"] - all_at_once.calls["aten.mm"] == 3 * 7 - 3  # and no product is repeated


def test_predictions_are_compared_only_in_steps_that_are_logged_and_in_validations(
    tmp_path: Path, tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    real = loop._Run._step

    def counted(self: Any) -> Any:
        with Largest() as found:
            result = real(self)
        steps.append(found.calls["aten.argmax"])
        return result

    monkeypatch.setattr(loop._Run, "_step", counted)
    recipe = tiny("log.every=5", "batch.micro_batch=8")
    result = loop.train(recipe, RunContext(tmp_path, cache=cache))
    assert steps == [2 if step in (5, 10, 12) else 0 for step in range(1, 13)]
    rows = [row for row in read_rows(tmp_path).rows if row["kind"] == "train"]
    assert [row["step"] for row in rows] == [5, 10, 12]
    assert all(0 < row["accuracy"] < 1 for row in rows)
    assert {"validation/accuracy", "test/accuracy"} <= set(result.metrics)


def test_a_resumed_run_has_the_same_bits_with_any_chunk_and_may_change_it(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    def losses(folder: Path) -> list[float]:
        return [row["loss"] for row in read_rows(folder).rows if row["kind"] == "train"]

    recipe = tiny("workload.model.loss_chunk=24")
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "cut", should_stop=StopAfter(5))
    run(recipe, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    run(recipe, tmp_path / "changed", should_stop=StopAfter(5))
    run(tiny(), tmp_path / "changed")
    assert losses(tmp_path / "changed") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.fixture
def four_fake_ranks() -> Iterator[None]:
    """A process group whose collectives exchange nothing: enough to count them."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("four_fake_ranks")
def test_shards_are_gathered_once_per_pass_for_any_number_of_chunks(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    def gathered(chunk: int) -> int:
        recipe = tiny("strategy=fsdp", "batch.micro_batch=2", f"workload.model.loss_chunk={chunk}")
        context = RunContext(tmp_path, 0, 4, 0, 4)
        workload = make_workload(recipe, cache)
        stepper = Stepper(recipe, context, workload, make_strategy(recipe, workload.build_model, context))
        with CommDebugMode() as communication:
            stepper.compute_gradients(list(range(16)))
        counts = communication.get_comm_counts()
        return sum(number for name, number in counts.items() if "gather" in str(name))

    # In each of two micro batches of 64 tokens: the block in both passes, and the root, with the head, once.
    assert gathered(chunk=8) == gathered(chunk=4096) == 2 * 3


@pytest.mark.parametrize(("chunk", "graphs"), [(32, 2), (4096, 2)])
@pytest.mark.deep
def test_chunks_share_a_compiled_graph(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, chunk: int, graphs: int
) -> None:
    monkeypatch.setattr(wrap, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    chosen = f"workload.model.loss_chunk={chunk}"
    given = (chosen, "steps=2", "optimizer.warmup=0", "batch.micro_batch=16", "log.every=2")
    run(tiny(*given), tmp_path / "plain")
    run(tiny(*given, "compile=true"), tmp_path / "compiled")
    (event,) = (row for row in read_rows(tmp_path / "compiled").rows if row.get("what") == "compiled")
    assert event["text"] == f"{graphs} graphs, no graph break"
    plain, compiled = (
        [row["loss"] for row in read_rows(tmp_path / name).rows if row["kind"] == "train"]
        for name in ("plain", "compiled")
    )
    assert compiled == pytest.approx(plain, rel=1e-5)
