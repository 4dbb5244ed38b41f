"""Causal language models of Hugging Face, trained from pretrained weights, fully or by LoRA, or from scratch.

Weights are kept in fp32, whatever their stored type, and computed with in the recipe's precision; with LoRA
and bf16 the base is kept in bf16. An exported LoRA model has its adapters merged, so that loading it needs no
peft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.chunked_loss import CHUNK
from trainfleet.training.workloads.document_masks import documents
from trainfleet.training.workloads.lm.hf_tokenizer import load_tokenizer
from trainfleet.training.workloads.lm.sampling import Hear, RowSampler
from trainfleet.training.workloads.lm.settings import GptSettings, SamplingSettings
from trainfleet.training.workloads.lora import merged, with_lora
from trainfleet.training.workloads.model_folder import need_transformers
from trainfleet.training.workloads.output_head import HeadLoss, Note
from trainfleet.training.workloads.stored_weights import Reads, StoredWeights, load, require_stored, shape_of


class Causal(StoredWeights):
    """A model of transformers: tokens [B, T] to logits [B, T, V], or with targets to their loss, without the
    logits of all tokens where its head is known (`HeadLoss`).

    `positions` [B, T] start at 0 in each document of a packed sample.
    """

    def __init__(
        self,
        inner: Any,
        reads: Reads | None = None,
        *,
        chunk: int = CHUNK,
        note: Note = lambda _: None,
    ) -> None:
        super().__init__()
        self.inner, self.reads = inner, reads or {}
        self.loss = HeadLoss(chunk, note)

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
        given = {"input_ids": tokens} | ({} if positions is None else {"position_ids": positions})
        with documents(packed=positions is not None):
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
    """The model with its pretrained weights in this type, or on the meta device as `StoredWeights`. `note` as
    in `HeadLoss`.

    Raises:
        InputError: the model does not exist, peft is not installed, or LoRA finds no target or weights that
            the model lacks.
    """
    name = str(settings.pretrained)
    with _known(name) as kind:
        loaded = load(kind, name, dtype)
    require_stored(name, loaded.missing | loaded.mismatched)
    if missing := sorted(loaded.missing):
        lacks = f"`{name}` lacks {', '.join(missing[:3])}"
        if settings.lora is not None:
            # They are random, would never be trained, and are in no checkpoint.
            fix = "use a complete model, or workload.model.lora=null"
            problem = Problem("workload.model.pretrained", f"{lacks}, which LoRA does not train", fix)
            raise InputError("the model is not complete", [problem])
        note(f"{lacks}, which begin with random values")
    return _causal(settings, loaded.model, loaded.reads, note)


def shape(settings: GptSettings, dtype: torch.dtype = torch.float32) -> Causal:
    """The model that `build` builds, without its pretrained weights. Raises as `build`."""
    with _known(str(settings.pretrained)) as kind:
        inner = shape_of(kind, str(settings.pretrained), dtype)
    return _causal(settings, inner, {})


def _causal(settings: GptSettings, inner: Any, reads: Reads, note: Note = lambda _: None) -> Causal:
    if settings.lora is not None:
        inner = with_lora(inner, settings.lora, task="CAUSAL_LM")
    return Causal(inner, reads, chunk=settings.loss_chunk, note=note)


@contextmanager
def _known(name: str) -> Iterator[Any]:
    """The class to load the model with; in the context, an InputError is raised if there is no such model."""
    tools = need_transformers(f"workload.model.pretrained {name}")
    try:
        yield tools.AutoModelForCausalLM
    except (OSError, ValueError, KeyError) as error:
        what = f"`{name}`: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
        problem = Problem("workload.model.pretrained", what, "use a causal language model")
        raise InputError("no such causal language model", [problem]) from error


@torch.no_grad()
def check_packing(model: Causal, name: str) -> None:
    """Compare two documents in one sample with each by itself, on the model as it is. Collective, if the
    model is sharded.

    Raises:
        InputError: their logits differ, so the model does not keep the documents of a sample apart.
    """
    training, device = model.training, next(model.parameters()).device
    documents = [torch.tensor([[4, 2, 3, 5, 1]], device=device), torch.tensor([[3, 1, 4, 2]], device=device)]
    positions = torch.cat([torch.arange(each.shape[1], device=device) for each in documents])[None]
    joined = torch.cat(documents, dim=1)
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):  # or it would be compiled for these shapes too
            outputs = [model(each) for each in documents]
            alone = torch.cat(outputs, dim=1).float()
            # What documents are to one another that are not kept apart: the measure where values are rounded.
            mixed = float((model(joined).float() - alone).abs().max())
            difference = float((model(joined, positions).float() - alone).abs().max())
        limit = 1e-3 * float(alone.abs().max())
        exact = device.type == "cpu" and outputs[0].dtype == torch.float32
        apart = difference <= (limit if exact else max(limit, 0.3 * mixed))
    except TypeError:  # it has no argument for positions
        apart = False
    finally:
        model.train(training)
        if isinstance(model, FSDPModule):
            model.reshard()
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
