"""Prepares conversations: rows of messages become tokens whose answers are marked, packed into samples.

The blocks, their fingerprint and the cache key depend on the tokenizer, its chat template, the context and
the settings of the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.training.data import (
    BadInput,
    BadRowError,
    ChangedRow,
    Column,
    Integrity,
    Prepared,
    Row,
    prepare,
    prepared_source,
    spread,
)
from trainfleet.training.data.progress import progress_reporter
from trainfleet.training.workloads import Split
from trainfleet.training.workloads.lm import packing
from trainfleet.training.workloads.lm.chat import CHAT_TEMPLATE, ChatEncoder, messages_of
from trainfleet.training.workloads.lm.encoders import TOKENIZER, token_type
from trainfleet.training.workloads.lm.settings import ConversationSettings, TextSettings
from trainfleet.training.workloads.lm.text import TokenFiles, open_files, raw_source, split_rule

CONVERSATIONS = "conversations.json"
"""How the answers were found and fitted, in the prepared folder: part of its digest."""


@dataclass(frozen=True)
class Conversations:
    """The transform that `prepare` runs: a row's messages to a sample."""

    encoder: ChatEncoder
    settings: ConversationSettings
    context: int

    @property
    def columns(self) -> Mapping[str, Column]:
        return packing.columns(token_type(self.encoder.vocabulary))

    @property
    def key(self) -> str:
        settings = self.settings
        return f"conversations 1 {settings.column} {settings.too_long} {self.context} {self.encoder.key}"

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | ChangedRow | BadInput | None]:
        return [self._one(row) for row in rows]

    def sample(self, value: Any) -> tuple[dict[str, Any], str]:
        """The sample of some messages, and how it was changed to fit into the context, if it was.

        Raises:
            BadRowError: they cannot be used.
        """
        tokens, mask = self.encoder.conversation(messages_of(value))
        answers = np.array(mask, dtype=np.uint8)
        answers[:1] = 0  # nothing comes before it
        if not answers.any():
            raise BadRowError("has no answer: no message of the role assistant that the chat template writes")
        count, most = len(tokens), self.context + 1
        changed = ""
        if count > most:
            changed = f"{count} tokens do not fit into the context of {self.context}"
            if self.settings.too_long == "refuse":
                raise BadRowError(f"{changed} (too_long: truncate would cut its end off)")
            answers, changed = answers[:most], f"{changed}: cut to {most}"
            if not answers.any():
                raise BadRowError(f"has no answer within the context of {self.context} tokens")
        kept = np.array(tokens[:most], dtype=token_type(self.encoder.vocabulary))
        return packing.sample_of(kept, answers), changed

    def _one(self, row: Row) -> Mapping[str, Any] | ChangedRow | BadInput:
        try:
            sample, changed = self.sample(row[self.settings.column])
        except BadRowError as error:
            return BadInput(row["name"], f"{self.settings.column}: {error}")
        return ChangedRow(sample, row["name"], changed) if changed else sample


@dataclass(frozen=True)
class ConversationFiles(TokenFiles):
    """Prepared conversations: samples of one, or with packing of several."""

    packing: bool

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, NDArray[np.int64]]:
        rows = self.blocks[split].rows(indices)
        return packing.batch_of(rows, self.context, self.encoder.end, self.packing)

    def num_targets(self, split: Split, indices: Sequence[int]) -> float:
        return float(self.blocks[split].rows(indices, columns=("num_targets",))["num_targets"].sum())

    def sample_tokens(self) -> int:
        """Places of a packed sample; else the mean number of tokens of some of the samples."""
        if self.packing:
            return self.context
        blocks = self.blocks["train"]
        found = [blocks.block(number)["documents"] for number in spread(len(blocks.entries), 8)]
        lengths = [int(each[row][0]) - 1 for each in found for row in range(len(each))]
        return max(1, round(sum(lengths) / len(lengths)))

    def byte_runs(self, split: Split, indices: Sequence[int] | None, at_most: int) -> Iterator[bytes]:
        """Each answer as bytes, after the last byte before it; of these samples, or of `at_most` blocks."""
        blocks = self.blocks[split]
        if indices is not None:
            yield from self._answers(blocks.rows(indices), len(indices))
            return
        for number in spread(len(blocks.entries), at_most):
            block = blocks.block(number)
            yield from self._answers(block, len(block["tokens"]))

    def _answers(self, rows: Mapping[str, Any], count: int) -> Iterator[bytes]:
        for row in range(count):
            tokens, answers = rows["tokens"][row].tolist(), rows["answers"][row]
            edges = np.flatnonzero(np.diff(answers, prepend=0, append=0)).reshape(-1, 2).tolist()
            for start, end in edges:
                before, *others = [self.spelling[token] for token in tokens[start - 1 : end]]
                yield b"".join([before[-1:], *others])


def conversation_files(
    settings: TextSettings, cache: Path, context: int, encoder: ChatEncoder
) -> ConversationFiles:
    """Open the blocks for these settings, preparing them first where the cache lacks them.

    Raises:
        InputError: there are no such conversations, some cannot be used, there are too few, or the cache
            cannot be written.
    """
    chosen = settings.conversations
    assert chosen is not None
    prepared = _prepared(settings, chosen, cache, context, encoder)
    blocks, streamed = open_files(prepared, settings, cache)
    return ConversationFiles(
        prepared,
        blocks,
        encoder,
        encoder.vocabulary,
        encoder.spelling,
        prepared.manifest.digest(),
        streamed,
        context,
        chosen.packing,
    )


def rows_batch(transform: Conversations, rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.int64]]:
    """A batch of a user's rows, each a sample.

    Raises:
        InputError: every row that cannot be used, by its number.
    """
    samples, problems = [], []
    column = transform.settings.column
    for number, row in enumerate(rows):
        try:
            samples.append(transform.sample(row.get(column))[0])
        except BadRowError as error:
            problems.append(Problem(f"row {number}", f"{column}: {error}"))
    if problems:
        raise InputError("some rows cannot be used", problems)
    columns = {name: [each[name] for each in samples] for name in transform.columns}
    return packing.batch_of(columns, transform.context, transform.encoder.end, packing=False)


def _prepared(
    settings: TextSettings, chosen: ConversationSettings, cache: Path, context: int, encoder: ChatEncoder
) -> Prepared:
    transform = Conversations(encoder, chosen, context)
    # Prepared data is used only with the same values.
    notes = {
        "tokens": "model",
        "context": context,
        "vocabulary": encoder.vocabulary,
        "encoder": encoder.encoder_digest,
        "chat template": encoder.template_digest,
        "packing": chosen.packing,
        "too_long": chosen.too_long,
    }
    prepared = prepared_source(settings.source, transform.columns, notes=notes)
    if prepared is not None:
        return prepared
    how = {"answers": "generation" if encoder.marks_answers else "prefixes", **notes}
    return prepare(
        raw_source(settings, chosen.column),
        transform,
        cache,
        name="conversations",
        rule=split_rule(settings),
        integrity=Integrity(settings.integrity, settings.quarantine_limit),
        combine=packing.Pack(context) if chosen.packing else None,
        rows_per_block=settings.block_rows,
        notes=notes,
        extras={
            TOKENIZER: encoder.tokenizer,
            CHAT_TEMPLATE: encoder.template.encode(),
            CONVERSATIONS: json.dumps(how, indent=1, sort_keys=True).encode(),
        },
        settings=settings.model_dump(mode="json"),
        store=settings.store,
        progress=progress_reporter("conversations"),
    )
