"""Causal language models of Hugging Face, trained from pretrained weights, fully or by LoRA, or from scratch.

Weights are kept in fp32, whatever their stored type, and computed with in the recipe's precision; with LoRA
and bf16 the base is kept in bf16. An exported LoRA model has its adapters merged, so that loading it needs no
peft.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.chunked_loss import CHUNK
from trainfleet.training.workloads.lm.hf_tokenizer import load_tokenizer
from trainfleet.training.workloads.lm.sampling import Hear, RowSampler
from trainfleet.training.workloads.lm.settings import GptSettings, SamplingSettings
from trainfleet.training.workloads.lora import merged, with_lora
from trainfleet.training.workloads.model_folder import need_transformers
from trainfleet.training.workloads.output_head import HeadLoss, Note
from trainfleet.training.workloads.stored_weights import Reads, StoredWeights, weights_of


class Causal(StoredWeights):
    """A model of transformers: tokens [B, T] to logits [B, T, V], or with targets to their loss, without the
    logits of all tokens where its head is known (`HeadLoss`).

    `positions` [B, T] start at 0 in each document of a packed sample. `source` names the pretrained model.
    """

    def __init__(
        self, inner: Any, source: str | None = None, *, chunk: int = CHUNK, note: Note = lambda _: None
    ) -> None:
        super().__init__()
        self.inner, self.source = inner, source
        self.loss = HeadLoss(chunk, note)

    def stored(self) -> Reads:
        assert self.source is not None, "only a pretrained model has weights in files"
        files, found, missing = weights_of(self.source), dict[str, Any](), list[str]()
        for name, _ in self.named_parameters():
            if (key := _name_in_files(name)) in files:
                found[name] = files[key]
            elif not _ADAPTER.search(name):
                missing.append(key)
        if missing:
            what = f"the files of `{self.source}` lack {', '.join(missing[:3])}, or have another name for it"
            problem = Problem(
                "sharding.meta_init workload.model.pretrained", what, "sharding.meta_init=false"
            )
            raise InputError("the model does not support meta_init", [problem])
        return found

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        targets: Tensor | None = None,
        count_correct: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Logits; with `targets` [B, T], the sum of the loss, and the number of correct predictions if
        requested.
        """
        # NOTE: without a mask and a cache, transformers finds the documents by their positions. It looks at
        # them once per pass, for which a GPU is waited for.
        given = {"input_ids": tokens} | ({} if positions is None else {"position_ids": positions})
        if targets is not None:
            loss: tuple[Tensor, Tensor | None]
            loss = self.loss(self.inner, given, targets, count_correct=count_correct)
            return loss
        logits: Tensor = self.inner(use_cache=False, **given).logits
        return logits

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: Sequence[SamplingSettings],
        end: int,
        hear: Hear = lambda *_: None,
    ) -> list[list[int]]:
        """Generate with transformers' `generate`, which caches keys and values. See `sampling.generate`."""
        longest = max(len(each) for each in prompts)
        device = next(self.inner.parameters()).device
        tokens = torch.tensor([[end] * (longest - len(each)) + list(each) for each in prompts], device=device)
        seen = torch.tensor(
            [[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=device
        )
        choose = _Choose(options, end, hear)
        self.inner.generate(
            input_ids=tokens,
            attention_mask=seen,
            max_new_tokens=max(each.max_tokens for each in options),
            pad_token_id=end,
            eos_token_id=end,
            do_sample=False,
            logits_processor=[choose],
        )
        return choose.texts


_ADAPTER = re.compile(r"\.lora_[A-Za-z_]+\.")
"""Part of the names of peft's adapters."""


def _name_in_files(name: str) -> str:
    """The name of a parameter of `Causal` in the files of the pretrained model: without peft's parts."""
    return name.removeprefix("inner.").removeprefix("base_model.model.").replace(".base_layer.", ".")


class _Choose:
    """Samples for `generate` of transformers: leaves one possible token in the logits of each row.

    A row that has ended gets the end token.
    """

    def __init__(self, options: Sequence[SamplingSettings], end: int, hear: Hear) -> None:
        self._options, self._end, self._hear = options, end, hear
        self._sampler = RowSampler(options)
        self.texts: list[list[int]] = [[] for _ in options]

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        active = [
            row
            for row, (text, each) in enumerate(zip(self.texts, self._options, strict=True))
            if len(text) < each.max_tokens and self._end not in text[-1:]
        ]
        chosen = [self._end] * len(self.texts)
        for row, token in zip(active, self._sampler(scores[active], active) if active else [], strict=True):
            chosen[row] = token
            self.texts[row].append(token)
            self._hear(row, token)
        only = torch.full_like(scores, float("-inf"))
        return only.scatter_(1, torch.tensor(chosen, device=scores.device)[:, None], 0.0)


def build(settings: GptSettings, dtype: torch.dtype = torch.float32, note: Note = lambda _: None) -> Causal:
    """The model with its pretrained weights in this type; on the meta device without weights. `note` as in
    `HeadLoss`.

    Raises:
        InputError: the model does not exist, peft is not installed, or LoRA finds no target or weights that
            the model lacks.
    """
    assert settings.pretrained is not None
    tools, missing = need_transformers(f"workload.model.pretrained {settings.pretrained}"), list[str]()
    try:
        if torch.empty(0).is_meta:
            inner = tools.AutoModelForCausalLM.from_config(
                tools.AutoConfig.from_pretrained(settings.pretrained), dtype=dtype
            )
        else:
            inner, read = tools.AutoModelForCausalLM.from_pretrained(
                settings.pretrained, dtype=dtype, output_loading_info=True
            )
            missing = sorted(read["missing_keys"])
    except (OSError, ValueError, KeyError) as error:
        what = f"`{settings.pretrained}`: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
        raise InputError(
            "no such causal language model",
            [Problem("workload.model.pretrained", what, "use a causal language model")],
        ) from error
    if settings.lora is not None and missing:
        # They are random, would never be trained, and are in no checkpoint.
        what = f"`{settings.pretrained}` lacks {', '.join(missing[:3])}, which LoRA does not train"
        fix = "use a complete model, or workload.model.lora=null"
        raise InputError("the model is not complete", [Problem("workload.model.pretrained", what, fix)])
    if settings.lora is not None:
        inner = with_lora(inner, settings.lora, task="CAUSAL_LM")
    return Causal(inner, settings.pretrained, chunk=settings.loss_chunk, note=note)


@torch.no_grad()
def check_packing(model: Causal, name: str) -> None:
    """Compare two documents in one sample with each by itself, on the model as it is.

    Raises:
        InputError: their logits differ, so the model does not keep the documents of a sample apart.
    """
    inner, training = model.inner, model.inner.training
    device = next(inner.parameters()).device
    documents = [torch.tensor([[4, 2, 3, 5, 1]], device=device), torch.tensor([[3, 1, 4, 2]], device=device)]
    positions = torch.cat([torch.arange(each.shape[1], device=device) for each in documents])[None]
    inner.eval()
    try:
        alone = torch.cat([model(each) for each in documents], dim=1)
        together = model(torch.cat(documents, dim=1), positions)
        apart = bool((together - alone).abs().max() <= 1e-3 * alone.abs().max())
    except TypeError:  # it has no argument for positions
        apart = False
    finally:
        inner.train(training)
    if not apart:
        what = f"`{name}` computes with the other documents of a packed sample, or with their positions"
        problem = Problem(
            "workload.data.conversations.packing", what, "workload.data.conversations.packing=false"
        )
        raise InputError("the model cannot be trained with packing", [problem])


def flops_per_token(model: Causal, context: int) -> float:
    """Forward and backward, as `trainfleet.training.workloads.lm.gpt.flops_per_token` counts them; 4 per
    parameter that is not trained, which has no gradient of its own.
    """
    config = model.inner.config.get_text_config()
    parameters = sum((6 if each.requires_grad else 4) * each.numel() for each in model.parameters())
    return float(parameters + 12 * config.num_hidden_layers * config.hidden_size * context)


def export(model: Causal, tokenizer: str | None, folder: Path) -> None:
    """Write the model, and the tokenizer of this name or folder."""
    merged(model.inner).save_pretrained(folder)
    if tokenizer is not None:
        load_tokenizer(tokenizer).save_pretrained(folder)
