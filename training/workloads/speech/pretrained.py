"""Pretrained speech models of Hugging Face: CTC models such as wav2vec2, and encoder-decoders such as
Whisper.

NOTE: under fsdp every rank must call the decoder equally often, from inside the model's forward pass, where
its weights are gathered.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.document_masks import documents
from trainfleet.training.workloads.lora import merged, with_lora
from trainfleet.training.workloads.model_folder import need_transformers, source_digest
from trainfleet.training.workloads.output_head import HeadLoss, Note
from trainfleet.training.workloads.pretrained_folder import (
    KEY,
    PREPROCESSOR,
    TOKENIZER,
    config_for,
    no_part,
    require_complete,
)
from trainfleet.training.workloads.speech.asr_models import (
    IGNORED,
    Letters,
    Recogniser,
    collapsed,
    ctc_losses,
)
from trainfleet.training.workloads.speech.settings import SpeechModelSettings, SpeechSettings
from trainfleet.training.workloads.stored_weights import Reads, StoredWeights, load, require_stored


def pretrained(settings: SpeechSettings) -> Recogniser:
    """The recogniser for the configured pretrained model.

    Raises:
        InputError: transformers is not installed, the model does not exist, or it needs another sampling
            rate.
    """
    if settings.model.kind == "seq2seq":
        found = Seq2SeqRecogniser(settings.model, settings.data.rate)
        found.require_lengths(settings.data.longest)
        return found
    return CtcRecogniser(settings.model, settings.data.rate)


class _Pretrained(Recogniser):
    def __init__(self, settings: SpeechModelSettings, rate: int) -> None:
        assert settings.pretrained is not None
        self.settings, self.name, self.rate = settings, settings.pretrained, rate
        self.tools = need_transformers(f"{KEY} {self.name}")
        self.config = config_for(self.name, settings.kind)
        self.lacks_frozen = False
        """Whether weights of the model that was built are not trained and not in its files either."""
        # A tokenizer is set up for each call, in place (set_truncation_and_padding), and threads share it.
        self.tokenizing = threading.Lock()
        self.feature_extractor = self.load_part(self.tools.AutoFeatureExtractor, PREPROCESSOR)
        if self.feature_extractor.sampling_rate != rate:
            what = f"{self.name} needs {self.feature_extractor.sampling_rate} Hz, the data has {rate} Hz"
            raise InputError(
                "the data has another sampling rate than the model",
                [Problem("workload.data.rate", what, str(self.feature_extractor.sampling_rate))],
            )

    def load_part(self, kind: Any, file: str) -> Any:
        """Load the named model's part with one of transformers' Auto classes; `file` describes it.

        Raises:
            InputError: this part does not exist.
        """
        try:
            return kind.from_pretrained(self.name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            words = re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__.removeprefix("Auto")).lower()
            raise no_part(self.name, words, file, error) from error

    def load_tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            InputError: there is none, or it has more tokens than the model.
        """
        tokenizer = self.load_part(self.tools.AutoTokenizer, TOKENIZER)
        last = max(tokenizer.get_vocab().values(), default=0)
        if last >= self.config.vocab_size:
            what = (
                f"`{self.name}`: its tokenizer has tokens up to number {last}, "
                f"the model has {self.config.vocab_size}"
            )
            fix = "use a tokenizer and a model of the same folder"
            if self.settings.kind == "ctc":
                fix += ", or workload.model.alphabet, which replaces the head"
            raise InputError("the tokenizer does not fit the model", [Problem(KEY, what, fix)])
        return tokenizer

    def load_model(
        self, kind: Any, freeze: str, head: str | None, unused: str | None = None, **more: Any
    ) -> tuple[Any, Reads]:
        """Load the named model, as `stored_weights.load` does, and call its method `freeze` if the encoder is
        frozen. A parameter whose name ends in `unused` is not trained. `head` may be missing; with LoRA it is
        trained as a whole if it is new.

        Raises:
            InputError: the model is not complete, or LoRA finds none of its targets.
        """
        loaded = load(kind, self.name, torch.float32, replace=True, **more)
        model, made = loaded.model, loaded.missing | loaded.mismatched
        new = {name for name in made if head is not None and name.startswith(f"{head}.")}
        lacking = {name for name in made - new if unused and name.endswith(unused)}
        require_stored(self.name, made - new - lacking)
        require_complete(self.name, made - new - lacking)
        for name in sorted(lacking):
            # As its constructor does; transformers leaves what a file lacks uninitialized here, such as NaN.
            torch.nn.init.uniform_(model.get_parameter(name))
        if self.settings.lora is not None:
            self.lacks_frozen = bool(made - new)
            heads = [head] if head is not None else []
            model = with_lora(model, self.settings.lora, head=heads, train_head=bool(new))
            return model, loaded.reads
        if self.settings.freeze_encoder and hasattr(model, freeze):
            getattr(model, freeze)()
        for name, parameter in model.named_parameters():
            if unused is not None and name.endswith(unused):
                parameter.requires_grad_(False)
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        self.lacks_frozen = not frozen.isdisjoint(loaded.missing)
        return model, loaded.reads

    def frozen_source(self) -> str | None:
        frozen = self.settings.freeze_encoder or self.settings.lora is not None
        return source_digest(self.name) if frozen and not self.lacks_frozen else None

    def _features(self, sounds: Sequence[NDArray[np.int16]], **settings: Any) -> dict[str, Tensor]:
        scaled = [each.astype(np.float32) / 32768 for each in sounds]
        found = self.feature_extractor(scaled, sampling_rate=self.rate, return_tensors="pt", **settings)
        return {key: value for key, value in found.items() if isinstance(value, Tensor)}


class CtcRecogniser(_Pretrained):
    """CTC models such as wav2vec2: letters per frame, with a new head for an `alphabet`, else their own
    letters.
    """

    def __init__(self, settings: SpeechModelSettings, rate: int) -> None:
        super().__init__(settings, rate)
        self.tokenizer: Any = None
        if settings.alphabet is None:
            self.tokenizer = self.load_tokenizer()
            self.blank = int(self.tokenizer.pad_token_id)
        else:
            self.letters = Letters(settings, rate)
            self.blank = 0

    def build(self) -> nn.Module:
        # NOTE: layerdrop would skip a layer on one rank only, and hang the others
        more: dict[str, Any] = {"layerdrop": 0.0}
        if self.tokenizer is None:
            more |= {"vocab_size": len(self.letters.letters), "pad_token_id": 0}
        kind, unused = self.tools.AutoModelForCTC, "masked_spec_embed"  # without masking, which ddp rejects
        return CtcModel(*self.load_model(kind, "freeze_feature_encoder", "lm_head", unused, **more))

    def inputs(self, sounds: Sequence[NDArray[np.int16]]) -> dict[str, Tensor]:
        found = self._features(sounds, padding=True, return_attention_mask=True)
        return {"sound": found["input_values"], "attention_mask": found["attention_mask"]}

    def targets(self, text: str) -> list[int]:
        if self.tokenizer is None:
            return self.letters.targets(text)
        with self.tokenizing:
            numbers = self.tokenizer(self._cased(text)).input_ids
        return [number for number in numbers if number != self.tokenizer.unk_token_id]

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        logits, steps = model(batch["sound"], batch["attention_mask"])
        return ctc_losses(logits, steps, batch["target"], self.blank).sum()

    def transcripts(self, model: Any, batch: dict[str, Tensor]) -> list[str]:
        logits, steps = model(batch["sound"], batch["attention_mask"])
        return [self.spelt(each) for each in collapsed(logits, steps, self.blank)]

    def spelt(self, targets: Sequence[int]) -> str:
        if self.tokenizer is None:
            return " ".join(self.letters.spelt(targets).split())
        return self.plain(self.tokenizer.decode(list(targets), group_tokens=False))

    def plain(self, text: str) -> str:
        return self.letters.plain(text) if self.tokenizer is None else plain_words(text)

    def export(self, model: nn.Module, folder: Path) -> None:
        merged(_inner(model)).save_pretrained(folder)
        self.feature_extractor.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
            return
        import json

        letters = {
            letter.replace(" ", "|") or "<pad>": number for number, letter in enumerate(self.letters.letters)
        }
        vocabulary = folder / "vocab.json"
        vocabulary.write_text(json.dumps(letters, ensure_ascii=False), encoding="utf-8")
        self.tools.Wav2Vec2CTCTokenizer(
            str(vocabulary), unk_token="<pad>", bos_token=None, eos_token=None
        ).save_pretrained(folder)

    def _cased(self, text: str) -> str:
        """The text in the case of the model's letters: some have upper case only."""
        known = self.tokenizer.get_vocab()
        return text.upper() if "E" in known and "e" not in known else text.lower()


class Seq2SeqRecogniser(_Pretrained):
    """Encoder-decoders such as Whisper: a spectrogram to tokens."""

    def __init__(self, settings: SpeechModelSettings, rate: int) -> None:
        super().__init__(settings, rate)
        self.tokenizer = self.load_tokenizer()
        if settings.language and hasattr(self.tokenizer, "set_prefix_tokens"):
            self.tokenizer.set_prefix_tokens(language=settings.language, task="transcribe")
        self.special = set(self.tokenizer.all_special_ids)
        self.start = int(self.config.decoder_start_token_id)
        self.end = int(self.tokenizer.eos_token_id)
        self.prefix = self._prefix()
        self.positions: int | None = getattr(self.config, "max_target_positions", None)
        self.notes: list[str] = []

    def require_lengths(self, longest: float) -> None:
        """Require that the model hears all of recordings of `longest` seconds, and can write `most_tokens`.

        Raises:
            InputError: it does not: its feature extractor would cut their end off.
        """
        seconds = getattr(self.feature_extractor, "chunk_length", None)
        problems = []
        if seconds is not None and longest > seconds:
            what = f"`{self.name}` hears {seconds} s, the data has recordings of up to {longest:g} s"
            problems.append(Problem("workload.data.longest", what, f"workload.data.longest={seconds}"))
        if self.positions is not None and self.settings.most_tokens + len(self.prefix) > self.positions:
            what = f"{self.settings.most_tokens} tokens and {len(self.prefix)} before them, "
            what += f"`{self.name}` has {self.positions} positions"
            most = self.positions - len(self.prefix)
            problems.append(Problem("workload.model.most_tokens", what, f"workload.model.most_tokens={most}"))
        if problems:
            raise InputError("the recordings do not fit the model", problems)

    def build(self) -> nn.Module:
        model, reads = self.load_model(self.tools.AutoModelForSpeechSeq2Seq, "freeze_encoder", None)
        most = self.settings.most_tokens
        return Seq2SeqModel(model, reads, self.prefix, self.end, most, note=self.notes.append)

    def inputs(self, sounds: Sequence[NDArray[np.int16]]) -> dict[str, Tensor]:
        found = self._features(sounds)
        return {"sound": next(found[key] for key in ("input_features", "input_values") if key in found)}

    def targets(self, text: str) -> list[int]:
        """Prefix, tokens and end token, without the start token."""
        with self.tokenizing:
            tokens = self.tokenizer(text, add_special_tokens=False).input_ids
        body = [token for token in tokens if token not in self.special]
        found = [*self.prefix[1:], *body, self.end]
        if self.positions is not None and len(found) > self.positions:
            what = f"has {len(found)} tokens, the model has {self.positions} positions"
            fix = "leave out such recordings, or split them"
            raise InputError("a transcript is too long for the model", [Problem(f"`{text[:60]}`", what, fix)])
        return found

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        targets = batch["target"]
        before = torch.cat((torch.full_like(targets[:, :1], self.start), targets[:, :-1]), dim=1)
        loss: Tensor = model(batch["sound"], before.masked_fill(before == IGNORED, self.end), targets)
        return loss

    def take_notes(self) -> list[str]:
        found = list(self.notes)
        self.notes.clear()  # the model appends to it
        return found

    def transcripts(self, model: Any, batch: dict[str, Tensor]) -> list[str]:
        return [
            self.tokenizer.decode(row, skip_special_tokens=True).strip()
            for row in model(batch["sound"]).tolist()
        ]

    def spelt(self, targets: Sequence[int]) -> str:
        return self.plain(self.tokenizer.decode(list(targets), skip_special_tokens=True))

    def plain(self, text: str) -> str:
        return plain_words(text)

    def export(self, model: nn.Module, folder: Path) -> None:
        merged(_inner(model)).save_pretrained(folder)
        self.feature_extractor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _prefix(self) -> list[int]:
        """The start token, and the tokens of language and task."""
        prefix = list(getattr(self.tokenizer, "prefix_tokens", [])) if self.settings.language else []
        return prefix if prefix[:1] == [self.start] else [self.start, *prefix]


class CtcModel(StoredWeights):
    """A CTC model: audio and masks [B, S] to logits [B, T, K] and the number of steps [B]."""

    def __init__(self, inner: Any, reads: Reads) -> None:
        super().__init__()
        self.inner, self.reads = inner, reads

    def forward(self, sound: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and self.inner.config.mask_time_prob > 0:
            shortest = int(self.inner._get_feat_extract_output_lengths(attention_mask.sum(dim=1)).min())
            self.inner.config.mask_time_length = min(self.inner.config.mask_time_length, max(1, shortest - 1))
        taken = {"attention_mask": attention_mask} if self.inner.config.feat_extract_norm == "layer" else {}
        logits: Tensor = self.inner(sound.to(self.inner.lm_head.weight.dtype), **taken).logits
        return logits, self.inner._get_feat_extract_output_lengths(attention_mask.sum(dim=1)).clamp(
            max=logits.shape[1]
        )


class Seq2SeqModel(StoredWeights):
    """An encoder-decoder: with tokens [B, L], logits [B, L, V]; also with targets [B, L], the sum of each
    row's mean loss; without both, generated tokens [B, N].
    """

    def __init__(
        self,
        inner: Any,
        reads: Reads,
        prefix: Sequence[int],
        end: int,
        max_tokens: int,
        *,
        note: Note = lambda _: None,
    ) -> None:
        super().__init__()
        self.inner, self.reads = inner, reads
        self.prefix, self.end, self.max_tokens = list(prefix), end, max_tokens
        self.loss = HeadLoss(note=note)

    def forward(self, sound: Tensor, before: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        sound = sound.to(next(self.inner.parameters()).dtype)
        if before is not None and targets is None:
            logits: Tensor = self.inner(sound, decoder_input_ids=before, use_cache=False).logits
            return logits
        if before is not None and targets is not None:
            counted = targets != IGNORED
            shares = (1.0 / counted.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(targets)
            name = self.inner.main_input_name  # input_features of Whisper
            given = {name: sound, "decoder_input_ids": before}
            with documents(packed=False):
                loss: Tensor = self.loss(self.inner, given, targets, shares=shares)[0]
            return loss
        encoded = self.inner.get_encoder()(sound)
        written = torch.tensor([self.prefix] * len(sound), device=sound.device)
        ended = torch.zeros(len(sound), dtype=torch.bool, device=sound.device)
        # under fsdp every rank must take the same number of steps
        sharded = any(type(each).__name__ == "DTensor" for each in self.inner.parameters())
        for _ in range(self.max_tokens):
            found = (
                self.inner(encoder_outputs=encoded, decoder_input_ids=written, use_cache=False)
                .logits[:, -1]
                .argmax(dim=-1)
            )
            found = found.masked_fill(ended, self.end)
            written, ended = torch.cat((written, found[:, None]), dim=1), ended | (found == self.end)
            if bool(ended.all()) and not sharded:
                break
        return written


def plain_words(text: str) -> str:
    """Lower case and single spaces, without punctuation."""
    return " ".join(
        "".join(letter if letter.isalnum() or letter == "'" else " " for letter in text.lower()).split()
    )


def _inner(model: nn.Module) -> Any:
    return model.inner
