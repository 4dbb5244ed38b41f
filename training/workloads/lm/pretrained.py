"""Pretrained causal language models of Hugging Face's, trained whole or by LoRA. Used by the `lm` workload
with `model.pretrained`.

Easy to get wrong: weights are kept in fp32 and computed with in the recipe's precision, whatever type they
were saved in; and an
exported LoRA model has its low-rank parts added in, so that whoever loads it needs no peft.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.lm.settings import GptSettings, LoraSettings
from trainfleet.training.workloads.model_folder import need_transformers


class Causal(nn.Module):
    """A model of transformers: tokens [B, T] to logits [B, T, V]."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits

    def write(
        self, prompts: Sequence[Sequence[int]], most: int, temperature: float, top_k: int, end: int
    ) -> list[list[int]]:
        """Continue prompts by transformers' own `generate`, which remembers what it computed."""
        longest = max(len(each) for each in prompts)
        device = next(self.inner.parameters()).device
        tokens = torch.tensor([[end] * (longest - len(each)) + list(each) for each in prompts], device=device)
        seen = torch.tensor(
            [[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=device
        )
        how = (
            {"do_sample": True, "temperature": temperature, "top_k": top_k}
            if temperature
            else {"do_sample": False}
        )
        found = self.inner.generate(
            input_ids=tokens,
            attention_mask=seen,
            max_new_tokens=most,
            pad_token_id=end,
            eos_token_id=end,
            **how,
        )
        return [list(row) for row in found[:, longest:].tolist()]


def build(settings: GptSettings) -> Causal:
    """The model with its pretrained weights, or on the meta device its shape alone.

    Raises:
        InputError: there is no such model, peft is not installed, or LoRA finds none of its targets.
    """
    assert settings.pretrained is not None
    tools = need_transformers(f"workload.model.pretrained {settings.pretrained}")
    try:
        if torch.empty(0).is_meta:
            inner = tools.AutoModelForCausalLM.from_config(
                tools.AutoConfig.from_pretrained(settings.pretrained)
            )
        else:
            inner = tools.AutoModelForCausalLM.from_pretrained(settings.pretrained, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        what = f"`{settings.pretrained}`: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
        raise InputError(
            "there is no such causal language model",
            [Problem("workload.model.pretrained", what, "a model that writes text")],
        ) from error
    return Causal(inner if settings.lora is None else _with_lora(inner, settings.lora))


def flops_per_token(model: Causal, context: int) -> float:
    """Forward and backward, as `trainfleet.training.workloads.lm.gpt.flops_per_token` counts them."""
    config = model.inner.config.get_text_config()
    parameters = sum(each.numel() for each in model.parameters())
    return float(6 * parameters + 12 * config.num_hidden_layers * config.hidden_size * context)


def export(model: Causal, tokenizer: str, folder: Path) -> None:
    """Write the model and the tokenizer that came with it."""
    inner = model.inner
    if hasattr(inner, "merge_and_unload"):
        inner = copy.deepcopy(inner).merge_and_unload()
    inner.save_pretrained(folder)
    need_transformers("export").AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def _with_lora(inner: Any, settings: LoraSettings) -> Any:
    try:
        import peft as package
    except ImportError as error:
        raise InputError(
            "peft is not installed",
            [Problem("workload.model.lora", "is done by it", "pip install trainfleet[hf]")],
        ) from error
    peft: Any = package
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(inner, config)
    except ValueError as error:
        names = sorted(
            {name.rpartition(".")[2] for name, part in inner.named_modules() if isinstance(part, nn.Linear)}
        )
        what = f"{', '.join(settings.targets)}: the model has {', '.join(names)}"
        raise InputError(
            "LoRA has nothing to train",
            [Problem("workload.model.lora.targets", what, "names of linear layers")],
        ) from error
