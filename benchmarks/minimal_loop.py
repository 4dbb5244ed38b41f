"""Hand-written training loops that the step loop is compared with: a minimal one, and one like torchtitan's.

They train the same model, from the same weights, on the same samples as the run that they are compared with.
They compute no metrics, save nothing and check no stop requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - PyTorch's usual name for it
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainfleet.errors import InputError, Problem
from trainfleet.training.data import make_order
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.optimizer import learning_rate
from trainfleet.training.trainer.strategies import wrap
from trainfleet.training.trainer.strategies.init_weights import build
from trainfleet.training.workloads import make_workload
from trainfleet.training.workloads.lm.workload import LanguageModel


class Yardstick(ABC):
    """A training loop on one rank: its model, optimizer and data. `step` is the body of the loop.

    Attributes:
        losses: of each step, the mean over this rank's samples: scalars on the device.
    """

    def __init__(self, recipe: Recipe, cache: Path, rank: int, world_size: int, device: str) -> None:
        """Build the workload and its order of samples.

        Raises:
            InputError: it is not the language model, or the ranks do not divide the batch.
        """
        self.recipe, self.rank, self.world_size, self.device = recipe, rank, world_size, device
        workload, batch = make_workload(recipe, cache), recipe.batch
        if not isinstance(workload, LanguageModel) or recipe.optimizer.name != "adamw":
            what, fix = "the yardsticks train the `lm` workload with AdamW", "such as --recipe lm-small"
            raise InputError("the recipe has no yardstick", [Problem("workload.name", what, fix)])
        if batch.global_batch % (batch.micro_batch * world_size):
            what = f"{world_size} x {batch.micro_batch} samples do not divide {batch.global_batch}"
            problem = Problem("batch.micro_batch", what, "a divisor of each rank's share")
            raise InputError("the yardsticks need whole micro batches", [problem])
        self.workload = workload
        self.order = make_order(recipe, self.workload)
        self.turns = batch.accumulation(world_size)
        self.total = recipe.total_steps(self.order.size)
        self.kind = device.partition(":")[0]
        self.losses: list[Tensor] = []

    @abstractmethod
    def step(self) -> None:
        """Run forward and backward over this rank's micro batches, clip, and step the optimizer."""

    def build(self) -> nn.Module:
        """The model with the run's initial weights, on the device."""
        return (
            build(self.workload.build_model, self.recipe.seed, self.recipe.meta_init)
            .materialise()
            .to(self.device)
        )

    def indices(self, turn: int) -> list[int]:
        """This rank's samples in micro batch `turn` of the next step."""
        batch = self.recipe.batch
        first = len(self.losses) * batch.global_batch
        start = first + (turn * self.world_size + self.rank) * batch.micro_batch
        return self.order.indices(start, batch.micro_batch)

    def rate(self) -> float:
        """The learning rate of the next step."""
        return learning_rate(self.recipe.optimizer, len(self.losses), self.total)

    def copied(self, value: Tensor) -> Tensor:
        """A batch on the device; on a GPU through pinned memory, so that nothing waits for the copy."""
        return (value.pin_memory() if self.kind == "cuda" else value).to(self.device, non_blocking=True)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.kind, torch.bfloat16) if self.recipe.precision == "bf16" else nullcontext()

    def adamw(self, model: nn.Module) -> torch.optim.AdamW:
        """Fused AdamW with weight decay on matrices only."""
        settings = self.recipe.optimizer
        groups: list[dict[str, Any]] = [
            {"params": [each for each in model.parameters() if each.ndim >= 2]},
            {"params": [each for each in model.parameters() if each.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            groups,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean loss in fp32 of logits [B, T, V] and targets [B, T]. Compiled, it is fused."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class ModelAndLoss(nn.Module):
    """Tokens and targets, both [B, T], to the mean loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = cross_entropy

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.model(inputs), targets)


class MinimalLoop(Yardstick):
    """The recipe's strategy, recomputation and compilation, applied by hand, and a loop of twenty lines.

    DDP compiles model and loss as one graph, if nothing is recomputed. Otherwise the blocks are compiled one
    by one, as in the step loop, and the loss by itself.
    """

    def __init__(self, recipe: Recipe, cache: Path, rank: int, world_size: int, device: str) -> None:
        super().__init__(recipe, cache, rank, world_size, device)
        self.sharded = recipe.strategy != "ddp"
        self.model: nn.Module = self.distribute(self.build())
        self.optimizer = self.adamw(self.model)

    def distribute(self, model: nn.Module) -> nn.Module:
        """Apply recomputation, compilation, and DDP or FSDP2, to the model and its loss."""
        recipe = self.recipe
        blocks = wrap.find_blocks(model, recipe.sharding.blocks)
        wrap.recompute(blocks, recipe.activation_checkpointing)
        whole = not self.sharded and recipe.activation_checkpointing == "none"
        pair = ModelAndLoss(model)
        if recipe.compile and whole:
            pair.compile(backend=wrap.BACKEND)
        elif recipe.compile:
            wrap.compile_blocks(model, blocks)
            pair.loss = torch.compile(cross_entropy, backend=wrap.BACKEND)
        if self.sharded:
            self.shard(blocks, model)
        elif self.world_size > 1:
            ids = [torch.device(self.device)] if self.kind == "cuda" else None
            return DistributedDataParallel(pair, device_ids=ids, gradient_as_bucket_view=True)
        return pair

    def shard(self, blocks: list[nn.Module], root: nn.Module) -> None:
        """Shard each block, then what is left."""
        mesh = init_device_mesh(self.kind, (dist.get_world_size(),))
        bf16 = self.recipe.precision == "bf16"
        policy = MixedPrecisionPolicy(torch.bfloat16 if bf16 else None, torch.float32)
        for part in (*blocks, root):
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=part is not root)

    def step(self) -> None:
        loss = torch.zeros((), device=self.device)
        for turn in range(self.turns):
            batch = self.workload.batch("train", self.indices(turn))
            inputs, targets = self.copied(batch["inputs"]), self.copied(batch["targets"])
            with self.synced(last=turn == self.turns - 1), self.whole_graphs():
                with nullcontext() if self.sharded else self.autocast():
                    part = self.model(inputs, targets) / self.turns
                part.backward()
            loss += part.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.grad_clip, foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss)

    def synced(self, last: bool) -> AbstractContextManager[Any]:
        """Context of a micro batch. Gradients are reduced in the last one only."""
        root = self.model.model if isinstance(self.model, ModelAndLoss) else self.model
        if isinstance(root, FSDPModule):
            root.set_requires_gradient_sync(last)
            root.set_is_last_backward(last)
        elif isinstance(root, DistributedDataParallel) and not last:
            return root.no_sync()
        return nullcontext()

    def whole_graphs(self) -> AbstractContextManager[Any]:
        """In the first step, when graphs are compiled: split them at DDP's buckets, which a run that compiles
        its blocks has turned off in this process.
        """
        if self.losses or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return torch._dynamo.config.patch(optimize_ddp=self.recipe.activation_checkpointing == "none")  # type: ignore[no-any-return]  # torch is partly typed


class TorchtitanLoop(MinimalLoop):
    """The structure of torchtitan: each block is wrapped for recomputation, then compiled, then sharded by
    FSDP2 if there is more than one rank; the loss is compiled. Gradients are reduced in every micro batch.

    Selective recomputation keeps all matrix products, as the step loop does; torchtitan keeps every second.
    """

    def distribute(self, model: nn.Module) -> nn.Module:
        recipe, pair = self.recipe, ModelAndLoss(model)
        self.sharded = self.world_size > 1
        blocks: Any = model.blocks
        for number, block in enumerate(blocks):
            if recipe.activation_checkpointing != "none":
                blocks[number] = Recomputed(block, recipe.activation_checkpointing == "selective")
            if recipe.compile:
                blocks[number] = torch.compile(blocks[number], backend=wrap.BACKEND, fullgraph=True)
        if recipe.compile:
            pair.loss = torch.compile(cross_entropy, backend=wrap.BACKEND)
        if self.sharded:
            self.shard(list(blocks), model)
        return pair

    def synced(self, last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002 - the same in each
        return nullcontext()


class Recomputed(nn.Module):
    """A block whose activations are recomputed in the backward pass; `selective` keeps the expensive ones."""

    def __init__(self, block: nn.Module, selective: bool) -> None:
        super().__init__()
        self.block, self.selective = block, selective

    def forward(self, *arguments: Any) -> Any:
        if not self.selective:
            return checkpoint(self.block, *arguments, use_reentrant=False)
        return checkpoint(self.block, *arguments, use_reentrant=False, context_fn=_selective)


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_kept)  # type: ignore[no-untyped-call]  # torch is partly typed


def _kept(_context: Any, operation: Any, *_arguments: Any, **_named: Any) -> CheckpointPolicy:
    name = str(operation)
    expensive = name in {"aten.mm.default", "aten.addmm.default"} or "_scaled_dot_product_" in name
    return CheckpointPolicy.MUST_SAVE if expensive else CheckpointPolicy.PREFER_RECOMPUTE
