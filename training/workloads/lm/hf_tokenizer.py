"""Tokenizers of pretrained models: encoding text, and the bytes of each token, needed for losses per byte.

Tokenizers write bytes in three ways: byte by byte as printable characters (GPT-2), with a mark for the
space (SentencePiece), or plainly.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.model_folder import need_transformers


@dataclass(frozen=True)
class ModelEncoder:
    """A pretrained model's tokenizer.json.

    Attributes:
        end: the token after each document.
        vocabulary: size of the model's embedding, which may exceed the tokenizer's.
    """

    tokenizer: bytes
    end: int
    vocabulary: int

    @property
    def key(self) -> str:
        return f"model {hashlib.sha256(self.tokenizer).hexdigest()} {self.end} {self.vocabulary}"

    @property
    def spelling(self) -> list[bytes]:
        tokenizer = _loaded(self.tokenizer)
        document = json.loads(self.tokenizer)
        special = {each["id"]: each["content"] for each in document.get("added_tokens", [])}
        by_bytes = '"ByteLevel"' in json.dumps([document.get("decoder"), document.get("pre_tokenizer")])
        known = ((number, tokenizer.id_to_token(number)) for number in range(self.vocabulary))
        spelt = [
            b""
            if token is None
            else special[number].encode()
            if number in special
            else spelt_bytes(token, by_bytes)
            for number, token in known
        ]
        spelt[self.end] = b"\0"
        return spelt

    def encode(self, documents: Sequence[bytes]) -> list[NDArray[Any]]:
        kind = "uint8" if self.vocabulary <= 2**8 else "uint16" if self.vocabulary <= 2**16 else "uint32"
        texts = [document.decode("utf-8", "replace") for document in documents]
        return [
            np.asarray(each.ids, dtype=kind)
            for each in _loaded(self.tokenizer).encode_batch_fast(texts, add_special_tokens=False)
        ]


def model_encoder(name: str, tokenizer_only: bool = False) -> ModelEncoder:
    """The encoder of a Hugging Face model, by name or folder.

    Args:
        name: of the model.
        tokenizer_only: of a tokenizer: there may be no model, and the vocabulary is that of the tokenizer.

    Raises:
        InputError: the model does not exist, or has no tokenizer.json.
    """
    key = "workload.model.tokenizer" if tokenizer_only else "workload.model.pretrained"
    tools = need_transformers(f"{key} {name}")
    try:
        tokenizer = load_tokenizer(name)
        vocabulary = len(tokenizer)
        if not tokenizer_only:
            config = tools.AutoConfig.from_pretrained(name)
            vocabulary = max(int(config.get_text_config().vocab_size), vocabulary)
    except (OSError, ValueError, KeyError) as error:
        what = f"`{name}`: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
        fix = "use a folder of save_pretrained, or a model name (with access to the hub or its cache)"
        raise InputError("no such model", [Problem(key, what, fix)]) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(
            "the model has no tokenizer.json",
            [Problem(key, f"`{name}` has none", "use another model")],
        )
    backend.no_truncation()
    backend.no_padding()
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0
    return ModelEncoder(str(backend.to_str()).encode(), int(end), vocabulary)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of transformers, by name or folder.

    Raises:
        OSError, ValueError, KeyError: there is none.
    """
    return need_transformers(name).AutoTokenizer.from_pretrained(name)


def spelt_bytes(token: str, by_bytes: bool) -> bytes:
    """The bytes of a token."""
    if by_bytes and all(letter in byte_of() for letter in token):
        return bytes(byte_of()[letter] for letter in token)
    if single := re.fullmatch(r"<0x([0-9A-F]{2})>", token):
        return bytes([int(single[1], 16)])
    return token.removeprefix("##").replace("\u2581", " ").encode()


@lru_cache(maxsize=1)
def byte_of() -> dict[str, int]:
    """Byte-level BPE's character for each byte: itself if printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {
        chr(0x100 + place): value for place, value in enumerate(others)
    }


@lru_cache(maxsize=4)
def _loaded(document: bytes) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(document.decode())
