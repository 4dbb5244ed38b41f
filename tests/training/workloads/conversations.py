"""Recipes and workloads on generated conversations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.workloads import models
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.workloads.lm.workload import LanguageModel

Rows = list[dict[str, Any]]
WORDS = ["gradient", "tensor", "step", "loss", "sums"]


def turn(rng: random.Random, role: str, words: int) -> dict[str, str]:
    return {"role": role, "content": " ".join(rng.choices(WORDS, k=words))}


def conversations(count: int, turns: int = 2, seed: int = 0) -> Rows:
    rng = random.Random(seed)
    return [
        {
            "messages": [
                turn(rng, role, rng.randint(1, 3))
                for _ in range(rng.randint(1, turns))
                for role in ("user", "assistant")
            ]
        }
        for _ in range(count)
    ]


def write(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.chat(tmp_path_factory.mktemp("unmarked"), models.PLAIN)


@pytest.fixture
def make(chat: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """A recipe on some conversations. Takes rows, or a file, and overrides."""

    def recipe(rows: Rows | Path, *overrides: str) -> Recipe:
        path = rows if isinstance(rows, Path) else write(tmp_path / "data" / "chat.jsonl", rows)
        return load_recipe(
            "lm-tiny",
            [
                f"workload.data.source={path}",
                "workload.data.conversations={}",
                "workload.data.tokens=model",
                "workload.data.validation_share=0.2",
                "workload.data.test_share=0.2",
                f"workload.model.pretrained={chat}",
                "workload.model.context=64",
                "scaling.workers=1",
                "steps=8",
                "optimizer={lr: 1e-2, warmup: 1}",
                "batch={global_batch: 6, micro_batch: 3}",
                "validation.every=4",
                "checkpoint.every=4",
                "log.every=1",
                "log.tensorboard=false",
                *overrides,
            ],
        )

    return recipe


@pytest.fixture
def workload(make: Callable[..., Recipe], tmp_path: Path) -> Callable[..., LanguageModel]:
    def build(rows: Rows | Path, *overrides: str) -> LanguageModel:
        return LanguageModel(make(rows, *overrides).workload, tmp_path / "cache")  # type: ignore[arg-type]  # the recipe's workload is lm

    return build


def targets_by_hand(name: Path, messages: list[dict[str, str]]) -> Iterator[tuple[int, int, bool]]:
    """Each token with the one after it, and whether that belongs to an answer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    tokens, answers = list[int](), list[bool]()
    for message in messages:
        answer = message["role"] == "assistant"
        head = tokenizer(f"<s>{message['role']}\n", add_special_tokens=False).input_ids
        body = tokenizer(f"{message['content']}</s>", add_special_tokens=False).input_ids
        tokens += head + body
        answers += [False] * len(head) + [answer] * len(body)
    yield from zip(tokens[:-1], tokens[1:], answers[1:], strict=True)
