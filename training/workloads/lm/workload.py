"""The language-model workload: a GPT or a model of transformers on text or conversations, with a bigram
baseline.

Of text, sample `i` is the tokens i·T to i·T + T of its split. Inputs and targets overlap by one, so a split
of n tokens holds (n - 1) // T samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads import Split, StepOutput, Workload
from trainfleet.training.workloads.base import IGNORED
from trainfleet.training.workloads.lm.architecture import build_architecture
from trainfleet.training.workloads.lm.bigram import nats_per_byte, pair_counts
from trainfleet.training.workloads.lm.chat import CHAT_TEMPLATE, ChatEncoder, chat_encoder, prompts_of
from trainfleet.training.workloads.lm.conversations import Conversations, conversation_files, rows_batch
from trainfleet.training.workloads.lm.encoders import END, TOKENIZER, BpeEncoder, ByteEncoder, Encoder
from trainfleet.training.workloads.lm.gpt import Gpt, flops_per_token
from trainfleet.training.workloads.lm.gpt_hf_layout import read_gpt, write_gpt, write_tokenizer
from trainfleet.training.workloads.lm.hf_tokenizer import ModelEncoder, model_encoder
from trainfleet.training.workloads.lm.sampled_text import TextPieces, options_of
from trainfleet.training.workloads.lm.sampling import Hear, generate
from trainfleet.training.workloads.lm.settings import GptSettings, LmSettings, SamplingSettings
from trainfleet.training.workloads.lm.text import token_files
from trainfleet.training.workloads.model_folder import dtype_of, source_digest
from trainfleet.training.workloads.transfer import to_device

_BASELINE_BLOCKS = 64
"""Number of blocks (of 8 MiB by default) counted for the bigram model."""


class LanguageModel(Workload):
    """See `trainfleet.training.workloads.Workload`. Batches hold `inputs` and `targets`, int64 [B, T], and of
    packed conversations `positions`.
    """

    metrics = ("nats_per_byte", "accuracy")
    thread_safe_batch = True
    byte_lengths: torch.Tensor
    _trains = False
    precisions = ("fp32", "bf16")
    predict_settings = SamplingSettings
    row_settings = tuple(SamplingSettings.model_fields)
    streams = True

    def __init__(self, settings: LmSettings, cache: Path) -> None:
        encoder = _model_encoder(settings, {}, None) if settings.data.tokens == "model" else None
        context = settings.model.context
        self.files = (
            conversation_files(settings.data, cache, context, encoder)
            if isinstance(encoder, ChatEncoder)
            else token_files(settings.data, cache, context, encoder)
        )
        self._configure(settings, self.files.encoder)
        self._trains = True
        self.streamed = self.files.streamed
        self.sample_tokens = self.files.sample_tokens()
        self.loss_unit = "nats/byte" if settings.data.tokens == "bytes" else "nats/token"
        with torch.device("meta"):
            pretrained = settings.model.pretrained is not None
            shape = _pretrained().shape(settings.model) if pretrained else self.build_model()
        self.parameters = sum(each.numel() for each in shape.parameters())
        if self._own:
            self.flops_per_token = flops_per_token(self.parameters, settings.model)
        else:
            self.flops_per_token = _pretrained().flops_per_token(shape, settings.model.context)

    def assets(self) -> dict[str, bytes]:
        """The BPE tokenizer, and the chat template. Another tokenizer is read with its model."""
        if isinstance(self.encoder, ChatEncoder):
            return {CHAT_TEMPLATE: self.encoder.template.encode()}
        own = self.settings.data.tokens == "bpe" and self.encoder.tokenizer is not None
        return {TOKENIZER: self.encoder.tokenizer or b""} if own else {}

    @classmethod
    def for_inference(cls, settings: LmSettings, assets: Mapping[str, bytes], folder: Path | None) -> Self:
        workload = cls.__new__(cls)
        workload._configure(settings, _encoder(settings, assets, folder))
        return workload

    def fingerprint(self) -> str:
        return self.files.digest

    def build_model(self) -> torch.nn.Module:
        settings, dtype = self.settings.model, dtype_of(self.precision)
        if self._own:
            return Gpt(settings, self.encoder.vocabulary)
        model: torch.nn.Module
        if settings.architecture is not None:
            inner = build_architecture(settings, self.encoder.vocabulary, self.encoder.end, dtype)
            model = _pretrained().Causal(inner, chunk=settings.loss_chunk, note=self._notes.append)
        else:
            # With LoRA, the base is what is not trained.
            frozen = dtype_of(self.frozen_precision) if settings.lora is not None else dtype
            model = _pretrained().build(settings, frozen if self._trains else dtype, self._notes.append)
        return model

    def check_model(self, model: torch.nn.Module) -> None:
        """Require that the model keeps the documents of a packed sample apart."""
        settings, conversations = self.settings.model, self.settings.data.conversations
        if conversations and conversations.packing:
            _pretrained().check_packing(model, settings.pretrained or settings.architecture)

    def frozen_source(self) -> str | None:
        model = self.settings.model
        return source_digest(model.pretrained) if model.pretrained is not None and model.lora else None

    def size(self, split: Split) -> int:
        return self.files.blocks[split].size

    def blocks(self, split: Split) -> list[int]:
        """Samples per block file, for a windowed shuffle."""
        return self.files.blocks[split].sizes()

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        """Open the blocks of these samples in the background."""
        self.files.blocks[split].prefetch(indices)

    def data_info(self) -> dict[str, Any]:
        """The data's entries in run.json."""
        return {"data": self.files.prepared.data_info()}

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        batch = self.files.batch(split, indices)
        return {name: torch.from_numpy(each).contiguous() for name, each in batch.items()}

    def num_targets(self, split: Split, indices: Sequence[int]) -> float:
        return self.files.num_targets(split, indices)

    def forward_loss(self, model: Callable[..., Any], batch: dict[str, torch.Tensor]) -> StepOutput:
        inputs, targets = batch["inputs"], batch["targets"]
        if self._own:
            loss, right = model(inputs, targets, self.wants_metrics)
        else:
            loss, right = model(inputs, batch.get("positions"), targets, self.wants_metrics)
        with torch.no_grad():
            if self.byte_lengths.device != targets.device:
                self.byte_lengths = to_device(self.byte_lengths, targets.device)  # once
            count: int | torch.Tensor = targets.numel()
            if self.settings.data.conversations is None:
                written = self.byte_lengths[targets].sum()
            else:
                counted = targets != IGNORED
                count = counted.sum()
                written = (self.byte_lengths[targets.where(counted, 0)] * counted).sum()
        sums: dict[str, tuple[torch.Tensor, torch.Tensor | int]] = {"nats_per_byte": (loss.detach(), written)}
        if right is not None:
            sums["accuracy"] = (right, count)
        return StepOutput(loss, count, sums)

    def baseline(self, indices: Sequence[int]) -> dict[str, float]:
        """Bigram cross entropy on the bytes of the targets of the validation samples `indices`, each after
        its predecessor; counted in part of the training split.
        """
        train = pair_counts(self.files.byte_runs("train", None, _BASELINE_BLOCKS))
        evaluated = pair_counts(self.files.byte_runs("validation", indices, _BASELINE_BLOCKS))
        return {"bigram_nats_per_byte": nats_per_byte(train, evaluated)}

    def read(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Rows with `text`, a prompt; an empty one starts a new document. Of a model of conversations, rows
        with messages, whose next answer is predicted, or with `text`, which is a message of a user.
        """
        encoder = self.encoder
        if isinstance(encoder, ChatEncoder):
            return self._padded(prompts_of(encoder, self._column, rows))
        problems = [
            Problem(f"row {number}", "has no text", '{"text": "the beginning"}')
            for number, row in enumerate(rows)
            if not isinstance(row.get("text"), str)
        ]
        if problems:
            raise InputError("some rows have no text", problems)
        return self._padded(
            [
                each.tolist() or [encoder.end]
                for each in encoder.encode([str(row["text"]).encode() for row in rows])
            ]
        )

    def read_samples(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, torch.Tensor]]:
        """Rows with `text`, each a whole document: every token, and the end, is predicted once, in windows of
        the context. The first follows the end of another document, as in training. Of a model of
        conversations, rows with messages, whose answers are predicted.
        """
        if isinstance(self.encoder, ChatEncoder):
            assert self.settings.data.conversations is not None
            context = self.settings.model.context
            transform = Conversations(self.encoder, self.settings.data.conversations, context)
            batch = rows_batch(transform, rows)
            yield {name: torch.from_numpy(each) for name, each in batch.items()}
            return
        read, end, context = self.read(rows), self.encoder.end, self.settings.model.context
        windows: dict[int, list[list[int]]] = {}
        for row, tokens, length in zip(rows, read["tokens"].tolist(), read["length"].tolist(), strict=True):
            document = [end, *(tokens[:length] if row["text"] else []), end]
            for start in range(0, len(document) - 1, context):
                part = document[start : start + context + 1]
                windows.setdefault(len(part), []).append(part)
        for parts in windows.values():
            for first in range(0, len(parts), len(rows)):
                values = torch.tensor(parts[first : first + len(rows)])
                yield {"inputs": values[:, :-1].contiguous(), "targets": values[:, 1:].contiguous()}

    @torch.no_grad()
    def predict(
        self,
        model: torch.nn.Module,
        batch: dict[str, torch.Tensor],
        *,
        hear: Callable[[int, str], Any] | None = None,
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Continue each text; see `SamplingSettings`. A setting may be a list with a value for each row."""
        prompts = [
            row[:length]
            for row, length in zip(batch["tokens"].tolist(), batch["length"].tolist(), strict=True)
        ]
        options = options_of(settings, len(prompts))
        end = self.encoder.end
        pieces = TextPieces(self.spelling, end, len(prompts), hear) if hear is not None else None
        hear_token: Hear = pieces.add if pieces is not None else lambda *_: None
        if self._own:
            assert isinstance(model, Gpt)
            context = self.settings.model.context
            found = generate(model, prompts, options, context=context, end=end, hear=hear_token)
        else:
            found = model.generate(prompts, options, end, hear_token)  # type: ignore[operator]  # Causal
        if pieces is not None:
            pieces.finish()
        return [{"text": self._text(tokens)} for tokens in found]

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        if not self._own:
            settings = self.settings.model
            _pretrained().export(model, settings.pretrained or settings.tokenizer, folder)
            if self.settings.data.tokens != "model":
                write_tokenizer(folder, self.encoder.tokenizer, self._end_text)
            return
        assert isinstance(model, Gpt)
        encoder = self.encoder
        write_gpt(model, folder, encoder.tokenizer, encoder.end, self._end_text)

    def import_(self, folder: Path) -> torch.nn.Module:
        """Build a model from what `export` wrote."""
        if self._own:
            return read_gpt(folder, dtype_of(self.precision))
        exported = GptSettings(pretrained=str(folder), context=self.settings.model.context)
        model: torch.nn.Module = _pretrained().build(exported, dtype_of(self.precision)).eval()
        return model

    def _configure(self, settings: LmSettings, encoder: Encoder) -> None:
        self.settings, self.encoder, self.spelling = settings, encoder, encoder.spelling
        self.byte_lengths = torch.tensor([len(each) for each in self.spelling])
        self.on_meta = self._own
        self._notes: list[str] = []

    def take_notes(self) -> list[str]:
        found = list(self._notes)
        self._notes.clear()  # the model appends to it
        return found

    @property
    def _own(self) -> bool:
        return self.settings.model.own

    @property
    def _end_text(self) -> str | None:
        return END if self.encoder.tokenizer else None

    @property
    def _column(self) -> str:
        conversations = self.settings.data.conversations
        return "messages" if conversations is None else conversations.column

    def _padded(self, tokens: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        longest, end = max(len(each) for each in tokens), self.encoder.end
        padded = torch.tensor([[*each, *[end] * (longest - len(each))] for each in tokens])
        return {"tokens": padded, "length": torch.tensor([len(each) for each in tokens])}

    def _text(self, tokens: Sequence[int]) -> str:
        """The text up to the end of the document."""
        end = self.encoder.end
        kept = tokens[: tokens.index(end)] if end in tokens else tokens
        return b"".join(self.spelling[token] for token in kept).decode("utf-8", "replace")


def _encoder(settings: LmSettings, assets: Mapping[str, bytes], folder: Path | None) -> Encoder:
    """The encoder of a trained model, from its assets or its published folder."""
    if settings.data.tokens == "model":
        return _model_encoder(settings, assets, folder)
    return ByteEncoder() if settings.data.tokens == "bytes" else BpeEncoder(assets[TOKENIZER])


def _model_encoder(settings: LmSettings, assets: Mapping[str, bytes], folder: Path | None) -> ModelEncoder:
    """The encoder of a tokenizer of Hugging Face; for conversations with the template of the training."""
    model = settings.model
    only = model.architecture is not None and folder is None
    name = str(folder or model.pretrained or model.tokenizer)
    if settings.data.conversations is None:
        return model_encoder(name, only)
    template = assets[CHAT_TEMPLATE].decode() if CHAT_TEMPLATE in assets else None
    return chat_encoder(name, tokenizer_only=only, template=template)


def _pretrained() -> Any:
    """Import transformers only if a pretrained model is used."""
    from trainfleet.training.workloads.lm import pretrained

    return pretrained
