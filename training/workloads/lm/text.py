"""Turns text into blocks of tokens: finds documents, splits them by name, tokenises and packs them, once per
machine.

The split is a hash of a document's path, so new files never move existing ones. The tokenizer is trained on
the training split only.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.data import (
    BadInput,
    Blocks,
    Column,
    Integrity,
    Prepared,
    Row,
    Source,
    SplitRule,
    find_source,
    prepare,
    prepared_source,
    spread,
)
from trainfleet.training.data.progress import progress_reporter
from trainfleet.training.data.sources import rows_of
from trainfleet.training.workloads import Split
from trainfleet.training.workloads.lm.encoders import (
    END,
    TOKENIZER,
    BpeEncoder,
    ByteEncoder,
    Encoder,
    token_type,
)
from trainfleet.training.workloads.lm.hf_tokenizer import ModelEncoder
from trainfleet.training.workloads.lm.settings import TextSettings

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
TOKENIZER_BYTES = 1 << 30
"""Amount of the training split, from its start, that a BPE vocabulary is trained on."""
ALL_BYTES = 1 << 62
STREAM_FROM = 4 << 30
"""Size of the tokens from which `stream: auto` reads block by block."""


@dataclass(frozen=True)
class Tokens:
    """The transform that `prepare` runs: documents to tokens, each followed by the end token."""

    encoder: Encoder
    column: str

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"tokens": Column(token_type(self.encoder.vocabulary), (None,))}

    @property
    def key(self) -> str:
        return f"tokens 1 {self.column} {self.encoder.key}"

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | BadInput | None]:
        texts = [_text(row, self.column) for row in rows]
        encoded = iter(self.encoder.encode([each for each in texts if isinstance(each, bytes)]))
        end = np.array([self.encoder.end], dtype=token_type(self.encoder.vocabulary))
        return [
            each
            if isinstance(each, BadInput)
            else {"tokens": np.concatenate((next(encoded), end)) if row.get("last", True) else next(encoded)}
            for row, each in zip(rows, texts, strict=True)
        ]


@dataclass(frozen=True)
class TokenFiles:
    """Prepared text.

    Attributes:
        prepared: the folder and its manifest.
        blocks: per split, samples of `context` + 1 tokens in a column `tokens`, each beginning with the
            last of the one before.
        vocabulary: how many tokens there are.
        encoder: turns text into the same tokens.
        spelling: the bytes of each token; the byte 0 is the end of a document.
        digest: identifies the tokens of all splits.
        streamed: too large for a full shuffle, or configured so.
        context: targets per sample.
    """

    prepared: Prepared
    blocks: dict[Split, Blocks]
    encoder: Encoder
    vocabulary: int
    spelling: list[bytes]
    digest: str
    streamed: bool
    context: int

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        """Samples [B, context]: `inputs`, and `targets` one later."""
        values = self.blocks[split].rows(indices, np.int64)["tokens"]
        return {"inputs": values[:, :-1], "targets": values[:, 1:]}

    def num_targets(self, split: Split, indices: Sequence[int]) -> float:  # noqa: ARG002 - every sample of every split has as many targets
        return float(len(indices) * self.context)

    def sample_tokens(self) -> int:
        """Tokens of a sample, on average."""
        return self.context

    def byte_runs(self, split: Split, indices: Sequence[int] | None, at_most: int) -> Iterator[bytes]:
        """The targets as bytes, each after its predecessor: of the samples `indices`, or of `at_most` evenly
        spaced blocks. Pieces overlap by one byte, so that each pair counts once.
        """
        spelling = self.spelling
        rows: Iterable[NDArray[Any]] = (
            self.tokens(split, at_most) if indices is None else self.blocks[split].rows(indices)["tokens"]
        )
        for tokens in rows:
            if isinstance(self.encoder, ByteEncoder):
                yield tokens.tobytes()
            else:
                first, *others = tokens.tolist()
                yield b"".join([spelling[first][-1:], *map(spelling.__getitem__, others)])

    def tokens(self, split: Split, at_most: int | None = None) -> Iterator[NDArray[Any]]:
        """A split's tokens by block, each starting with the previous token; of `at_most` evenly spaced
        blocks.
        """
        blocks = self.blocks[split]
        for number in spread(len(blocks.entries), at_most):
            rows = blocks.block(number)["tokens"]
            yield np.concatenate((rows[:, :-1].reshape(-1), rows[-1:, -1]))


def token_files(
    settings: TextSettings, cache: Path, context: int, pretrained: Encoder | None = None
) -> TokenFiles:
    """Open the blocks for these settings, preparing them first where the cache lacks them; `pretrained` are a
    pretrained model's tokens.

    Raises:
        InputError: there is no such text, some of it cannot be used, there is too little, or the cache
            cannot be written.
    """
    prepared = _prepared(settings, cache, context, pretrained)
    blocks, streamed = open_files(prepared, settings, cache)
    encoder = _encoder_of(prepared)
    return TokenFiles(
        prepared,
        blocks,
        encoder,
        encoder.vocabulary,
        encoder.spelling,
        prepared.manifest.digest(),
        streamed,
        context,
    )


def open_files(prepared: Prepared, settings: TextSettings, cache: Path) -> tuple[dict[Split, Blocks], bool]:
    """The blocks of each split, and whether they are streamed."""
    stream = prepared.manifest.bytes() >= STREAM_FROM if settings.stream == "auto" else settings.stream
    found = prepared.splits(
        cache,
        disk=int(settings.disk_gib * 2**30),
        memory=settings.memory_mib << 20 if stream else ALL_BYTES,
    )
    return {split: found[split] for split in SPLITS}, stream


def split_of(name: str, settings: TextSettings) -> Split:
    """Where a document goes: a function of its name and the split seed alone."""
    return next(split for split in SPLITS if split == split_rule(settings).of_name(name))


def _prepared(settings: TextSettings, cache: Path, context: int, pretrained: Encoder | None) -> Prepared:
    prepared = prepared_source(
        settings.source,
        ("tokens",),
        settings={"vocabulary": settings.vocabulary} if settings.tokens == "bpe" else {},
        notes={
            "tokens": settings.tokens,
            "context": context,
            **({"vocabulary": pretrained.vocabulary} if pretrained else {}),
        },
    )
    if prepared is not None:
        return prepared
    source = raw_source(settings, settings.column)
    encoder = pretrained or (
        ByteEncoder() if settings.tokens == "bytes" else _bpe_encoder(settings, source, cache)
    )
    return prepare(
        source,
        Tokens(encoder, settings.column),
        cache,
        name="text",
        rule=split_rule(settings),
        integrity=Integrity(settings.integrity, settings.quarantine_limit),
        pack=context,
        rows_per_block=settings.block_rows,
        notes={
            "tokens": settings.tokens,
            "context": context,
            "vocabulary": encoder.vocabulary,
            **({"end": pretrained.end} if pretrained else {}),
        },
        extras={TOKENIZER: encoder.tokenizer} if encoder.tokenizer else {},
        settings=settings.model_dump(mode="json"),
        store=settings.store,
        progress=progress_reporter("text"),
    )


def raw_source(settings: TextSettings, column: str) -> Source:
    """The files that the settings name; tables must have the column.

    Raises:
        InputError: there are none.
    """
    columns = (column,)
    if settings.source == "stdlib":  # empty modules are valid
        root = sysconfig.get_paths()["stdlib"]
        return find_source(
            root,
            "**/*.py",
            columns=columns,
            keep=lambda name: not EXCLUDED_FOLDERS.intersection(name.split("/")),
            allow_empty=True,
        )
    try:
        return find_source(settings.source, settings.glob, columns=columns)
    except InputError as error:
        problems = [
            Problem(f"workload.data.source {each.where}", each.what, each.fix) for each in error.problems
        ]
        raise InputError("there is no text to train on", problems) from error


def split_rule(settings: TextSettings) -> SplitRule:
    """Assigns documents and rows to splits."""
    return SplitRule(settings.validation_share, settings.test_share, settings.split_seed)


def _text(row: Row, column: str) -> bytes | BadInput:
    value = row["text"] if "last" in row else row[column]
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return BadInput(
        row["name"],
        f"{column} is null" if value is None else f"{column} holds {type(value).__name__} instead of text",
    )


def _bpe_encoder(settings: TextSettings, source: Source, cache: Path) -> BpeEncoder:
    """A vocabulary trained on the training split, cached next to the blocks."""
    identity = [
        1,
        source.key,
        settings.column,
        settings.vocabulary,
        asdict(split_rule(settings)),
        TOKENIZER_BYTES,
    ]
    path = cache / f"bpe-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:20]}.json"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                write_whole(path, _train(settings, source))
            return BpeEncoder(path.read_bytes())
    except OSError as error:
        fix = "set TRAINFLEET_CACHE to a writable folder"
        raise InputError(
            "cannot prepare the data", [Problem(str(cache), error.strerror or str(error), fix)]
        ) from error


def _train(settings: TextSettings, source: Source) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_training_text(settings, source), trainer)
    return str(tokenizer.to_str())


def _training_text(settings: TextSettings, source: Source) -> Iterator[str]:
    rule, left = split_rule(settings), TOKENIZER_BYTES
    for unit in source.units:
        for row in rows_of(unit):
            text = row if isinstance(row, BadInput) else _text(row, settings.column)
            if isinstance(text, BadInput) or isinstance(row, BadInput) or rule.of(row) != "train":
                continue  # bad inputs are reported when they are tokenised
            yield text.decode("utf-8", "replace")
            left -= len(text)
            if left <= 0:
                return


def _encoder_of(prepared: Prepared) -> Encoder:
    if TOKENIZER not in prepared.manifest.extras:
        return ByteEncoder()
    notes = prepared.manifest.notes
    if notes.get("tokens") == "model":
        return ModelEncoder(prepared.extra(TOKENIZER), int(notes["end"]), int(notes["vocabulary"]))
    return BpeEncoder(prepared.extra(TOKENIZER))
