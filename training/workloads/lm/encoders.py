"""Text to tokens: bytes, and a BPE vocabulary that is trained on the text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainfleet.training.workloads.lm.hf_tokenizer import byte_of

END = "<|end|>"
TOKENIZER = "tokenizer.json"


class Encoder(Protocol):
    """Text to tokens. A frozen dataclass: it travels to other processes."""

    @property
    def key(self) -> str:
        """Identifies the vocabulary."""
        ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def spelling(self) -> list[bytes]:
        """The bytes of each token; the byte 0 is the end of a document."""
        ...

    @property
    def end(self) -> int:
        """The token after each document."""
        ...

    @property
    def tokenizer(self) -> bytes | None:
        """A tokenizer.json, kept with the blocks."""
        ...

    def encode(self, documents: Sequence[bytes]) -> list[NDArray[Any]]: ...


@dataclass(frozen=True)
class ByteEncoder:
    """A token is a byte."""

    key: str = "bytes"
    vocabulary: int = 256
    end: int = 0
    tokenizer: bytes | None = None

    @property
    def spelling(self) -> list[bytes]:
        return [bytes([value]) for value in range(256)]

    def encode(self, documents: Sequence[bytes]) -> list[NDArray[Any]]:
        return [np.frombuffer(document, dtype=np.uint8) for document in documents]


@dataclass(frozen=True)
class BpeEncoder:
    """Byte-level BPE of a tokenizer.json; invalid UTF-8 is replaced."""

    tokenizer: bytes

    @property
    def key(self) -> str:
        return f"bpe {hashlib.sha256(self.tokenizer).hexdigest()}"

    @property
    def vocabulary(self) -> int:
        return int(_loaded(self.tokenizer).get_vocab_size())

    @property
    def spelling(self) -> list[bytes]:
        """Byte-level BPE writes a byte as a printable character: itself, or one from U+0100 on."""
        tokenizer = _loaded(self.tokenizer)
        tokens = (str(tokenizer.id_to_token(token)) for token in range(tokenizer.get_vocab_size()))
        return [
            b"\0" if token == END else bytes(byte_of()[character] for character in token) for token in tokens
        ]

    @property
    def end(self) -> int:
        return int(_loaded(self.tokenizer).token_to_id(END) or 0)

    def encode(self, documents: Sequence[bytes]) -> list[NDArray[Any]]:
        encoded = _loaded(self.tokenizer).encode_batch_fast(
            [document.decode("utf-8", "replace") for document in documents]
        )
        return [np.asarray(each.ids, dtype=token_type(self.vocabulary)) for each in encoded]


def token_type(vocabulary: int) -> str:
    """The smallest numpy type for a vocabulary's tokens."""
    return "uint8" if vocabulary <= 2**8 else "uint16" if vocabulary <= 2**16 else "uint32"


@lru_cache(maxsize=4)
def _loaded(document: bytes) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(document.decode())
