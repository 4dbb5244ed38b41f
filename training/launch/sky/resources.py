"""What a recipe needs of a GPU (memory, operations per sample), and what each GPU can do. Pure, without
torch.

Every figure is a lower estimate: a rejected machine is certainly too small, an accepted one may still run out
of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.workloads.lm.settings import GptSettings, LmSettings

BF16_FLOPS = {
    "A10": 125e12,
    "A10G": 70e12,
    "A100": 312e12,
    "A100-80GB": 312e12,
    "B200": 2250e12,
    "B300": 2250e12,
    "H100": 989e12,
    "H100-MEGA": 989e12,
    "H200": 989e12,
    "L4": 121e12,
    "L40S": 362e12,
    "RTXPRO6000": 503.8e12,
}
"""Dense bf16 operations per second by SkyPilot's name. Source: NVIDIA's data sheets. T4 has no bf16."""
FP32_SHARE = 0.5
"""fp32 matrix products use TF32 on these GPUs, at half of bf16's rate."""
STATE_BYTES = 16
"""Per parameter: weight, gradient and AdamW's two moments, in 32 bits under either precision."""
MUON_STATE_BYTES = 12
"""The same with one moment; that embeddings have two is left out."""
USABLE = 0.92
"""Share of a GPU's memory that remains after the CUDA context, NCCL's buffers and fragmentation."""
GIB = 2**30


@dataclass(frozen=True)
class Needs:
    """A recipe's needs; None where they depend on its data."""

    parameters: float | None
    flops_per_sample: float | None
    tokens_per_sample: int
    activation_bytes: float
    """Of one micro batch on one rank; a lower bound."""
    samples: float | None
    """Of the whole run; None if the recipe counts epochs."""

    def gpu_bytes(self, recipe: Recipe, workers: int) -> float | None:
        """Minimum memory of each rank; None if the model's size is unknown."""
        if self.parameters is None:
            return None
        shards = {"ddp": 1, "fsdp": workers}.get(recipe.strategy) or max(
            1, workers // (recipe.sharding.replicas or 1)
        )
        state_bytes = STATE_BYTES if recipe.optimizer.name == "adamw" else MUON_STATE_BYTES
        if recipe.ema.decay is not None:
            state_bytes += 4
        states = state_bytes * self.parameters / shards
        if recipe.strategy == "ddp":
            states += 4 * self.parameters  # the buckets of the gradient all-reduce
        elif recipe.sharding.cpu_offload:
            states = 0.0
        return states + self.activation_bytes


def needs_of(recipe: Recipe, parameters: float | None = None) -> Needs:
    """A recipe's needs. `parameters` is the model's size where the recipe does not define it."""
    samples = None if recipe.steps is None else float(recipe.steps * recipe.batch.global_batch)
    workload = recipe.workload
    if not isinstance(workload, LmSettings):
        flops = None if parameters is None else 6.0 * parameters
        return Needs(parameters, flops, 1, 0.0, samples)
    model, vocabulary = workload.model, vocabulary_size(workload)
    size = gpt_parameters(model, vocabulary) if model.own else None
    size = parameters if parameters is not None else size
    attention = 12.0 * model.layers * model.width * model.context if model.own else 0.0
    flops_per_token = None if size is None else 6.0 * size + attention
    flops = None if flops_per_token is None else flops_per_token * model.context
    activations = _activations(recipe, model, vocabulary) if model.own else 0.0
    return Needs(size, flops, model.context, activations, samples)


def vocabulary_size(settings: LmSettings) -> int:
    """Size of the vocabulary; bytes have one more token, which ends a document."""
    return 257 if settings.data.tokens == "bytes" else settings.data.vocabulary


def gpt_parameters(model: GptSettings, vocabulary: int) -> float:
    """Parameters of `trainfleet.training.workloads.lm.gpt.Gpt`."""
    hidden = max(8, round(model.width * model.mlp_ratio / 8) * 8)
    mlp = (3 if model.mlp == "swiglu" else 2) * model.width * hidden
    block = 4 * model.width**2 + mlp + 2 * model.width
    return float(vocabulary * model.width + model.layers * block + model.width)


def _activations(recipe: Recipe, model: GptSettings, vocabulary: int) -> float:
    """Bytes that a forward pass keeps for the backward pass.

    With fused attention about 34 bytes per token, layer and unit of width without recomputation (Korthikanti
    et al. 2022, equation 2, without the attention matrix), or one value if everything is recomputed; and the
    logits of a chunk with their gradient.
    """
    tokens = recipe.batch.micro_batch * model.context
    width = 2 if recipe.precision == "bf16" else 4
    per_layer = {"none": 17, "selective": 9, "full": 1}[recipe.activation_checkpointing]
    logits = min(tokens, model.loss_chunk) * vocabulary * (width + 4)
    return float(tokens * model.layers * model.width * per_layer * width + logits)
