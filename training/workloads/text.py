"""Text into token files: found, split by document, tokenised and packed, once per machine and whole or not at all.

Used by the `lm` workload. Easy to get wrong: the split is a hash of a document's own path, so a new file never moves
another one to a different split; and the tokenizer sees the training split only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from training.workloads import Split
from training.workloads.lm_settings import TextSettings

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
END = "<|end|>"
FORMAT = 1
"""Part of the cache's key: raise it when the files' meaning changes."""

Document = tuple[str, bytes]
"""A stable name, which decides the split, and the text."""


@dataclass(frozen=True)
class TokenFiles:
    """What one cached folder holds.

    Attributes:
        splits: memory-mapped tokens per split.
        vocabulary: how many tokens there are.
        spelling: the bytes of each token; the byte 0 stands for the end of a document.
        digest: identifies the tokens of all splits.
    """

    splits: dict[Split, NDArray[Any]]
    vocabulary: int
    spelling: list[bytes]
    digest: str


def token_files(settings: TextSettings, cache: Path) -> TokenFiles:
    """Open the token files for these settings, building them first where the cache lacks them.

    Raises:
        InputError: there is no such text, or the cache cannot be written.
    """
    paths = _find(settings)
    folder = cache / f"text-{_key(settings, paths)}"
    if not folder.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    _build(settings, paths, folder)
        except OSError as error:
            fix = "set TRAINFLEET_CACHE to a folder that can be written"
            raise InputError("cannot prepare the data", [Problem(str(cache), error.strerror or str(error), fix)]) from error
    return _open(folder)


def split_of(name: str, settings: TextSettings) -> Split:
    """Where a document goes: a function of its name and the split seed alone."""
    share = int.from_bytes(hashlib.sha256(f"{settings.split_seed}:{name}".encode()).digest()[:8]) / 2**64
    if share < settings.test_share:
        return "test"
    return "validation" if share < settings.test_share + settings.validation_share else "train"


def _find(settings: TextSettings) -> list[tuple[str, Path]]:
    """Files by name relative to their root, sorted."""
    if settings.source == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        found = [path for path in root.rglob("*.py") if not LEFT_OUT.intersection(path.relative_to(root).parts)]
    elif Path(settings.source).is_file():
        return [(Path(settings.source).name, Path(settings.source))]
    else:
        root = Path(settings.source)
        found = [path for path in root.glob(settings.glob) if path.is_file()]
    if not found:
        what = f"no file fits {settings.glob}" if root.is_dir() else "is no folder and no file"
        raise InputError("there is no text to train on", [Problem(f"workload.data.source {settings.source}", what, "name a folder, or `stdlib`")])
    return sorted((path.relative_to(root).as_posix(), path) for path in found)


def _key(settings: TextSettings, paths: list[tuple[str, Path]]) -> str:
    listing = []
    for name, path in paths:
        status = path.stat()
        listing.append([name, status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps([FORMAT, settings.model_dump(), listing]).encode()).hexdigest()[:20]


def _documents(settings: TextSettings, paths: list[tuple[str, Path]]) -> Iterator[Document]:
    for name, path in paths:
        if path.suffix == ".parquet":
            yield from _rows(name, path, settings.column)
        else:
            yield name, path.read_bytes()


def _rows(name: str, path: Path, column: str) -> Iterator[Document]:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    if column not in file.schema_arrow.names:
        have = ", ".join(file.schema_arrow.names)
        raise InputError("there is no such column", [Problem(f"workload.data.column {column}", f"{path} has {have}", "name one of these")])
    row = 0
    for batch in file.iter_batches(columns=[column]):
        for text in batch.column(0).to_pylist():
            yield f"{name}#{row}", (text or "").encode()
            row += 1


def _build(settings: TextSettings, paths: list[tuple[str, Path]], folder: Path) -> None:
    texts: dict[Split, list[bytes]] = {split: [] for split in SPLITS}
    for name, text in _documents(settings, paths):
        texts[split_of(name, settings)].append(text)
    if short := [split for split in SPLITS if not any(texts[split])]:
        found = ", ".join(f"{split} {len(texts[split])}" for split in SPLITS)
        fix = "more files (or parquet rows), other shares or another split_seed"
        raise InputError("too few documents to split", [Problem("workload.data", f"nothing in {', '.join(short)} ({found})", fix)])
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        meta = _write_bytes(texts, temporary) if settings.tokens == "bytes" else _write_bpe(texts, temporary, settings.vocabulary)
        digest = hashlib.sha256()
        for split in SPLITS:
            digest.update((temporary / f"{split}.bin").read_bytes())
        (temporary / "meta.json").write_text(json.dumps(meta | {"digest": digest.hexdigest()}))
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_bytes(texts: dict[Split, list[bytes]], folder: Path) -> dict[str, Any]:
    for split, documents in texts.items():
        (folder / f"{split}.bin").write_bytes(b"\0".join([*documents, b""]))
    return {"dtype": "uint8", "vocabulary": 256}


def _write_bpe(texts: dict[Split, list[bytes]], folder: Path, vocabulary: int) -> dict[str, Any]:
    """Byte-level BPE, whose tokens spell bytes; bytes that are no UTF-8 are replaced."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    plain = {split: [document.decode("utf-8", "replace") for document in documents] for split, documents in texts.items()}
    tokenizer.train_from_iterator(plain["train"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, size = int(tokenizer.token_to_id(END) or 0), tokenizer.get_vocab_size()
    dtype = "uint16" if size <= 2**16 else "uint32"
    for split, documents in plain.items():
        ids: list[int] = []
        for encoding in tokenizer.encode_batch_fast(documents):
            ids.extend([*encoding.ids, end])
        np.asarray(ids, dtype=dtype).tofile(folder / f"{split}.bin")
    return {"dtype": dtype, "vocabulary": size}


def _open(folder: Path) -> TokenFiles:
    meta = json.loads((folder / "meta.json").read_text())
    splits: dict[Split, NDArray[Any]] = {split: np.memmap(folder / f"{split}.bin", dtype=meta["dtype"], mode="r") for split in SPLITS}
    spelling = _spelling(folder / "tokenizer.json") if (folder / "tokenizer.json").is_file() else [bytes([value]) for value in range(256)]
    return TokenFiles(splits, meta["vocabulary"], spelling, meta["digest"])


def _spelling(path: Path) -> list[bytes]:
    """The bytes of each BPE token. Byte-level BPE writes a byte as a printable character: itself, or one from U+0100 on."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    byte_of = {chr(value): value for value in printable} | {chr(0x100 + place): value for place, value in enumerate(others)}
    tokens = (str(tokenizer.id_to_token(token)) for token in range(tokenizer.get_vocab_size()))
    return [b"\0" if token == END else bytes(byte_of[character] for character in token) for token in tokens]
