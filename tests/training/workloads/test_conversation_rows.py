"""Conversations: rows and settings that cannot be used, what is cut off, fingerprints, and trained models."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from tests.training.workloads import models
from tests.training.workloads.conversations import (
    Rows,
    chat,
    conversations,
    make,
    targets_by_hand,
    turn,
    unmarked,
    workload,
)
from trainfleet.errors import InputError
from trainfleet.training.data import BadRowError
from trainfleet.training.data.prepared import open_prepared
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.lm.chat import chat_encoder
from trainfleet.training.workloads.lm.packing import IGNORED
from trainfleet.training.workloads.lm.workload import LanguageModel

__all__ = ["chat", "make", "unmarked", "workload"]


def good(count: int = 60) -> Rows:
    return conversations(count)


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"text": "no messages"}, "has no messages"),
    ({"messages": []}, "messages: holds no messages"),
    ({"messages": "hello"}, "messages: holds str, not messages"),
    ({"messages": [{"content": "x"}]}, "messages: message 1 has no role"),
    ({"messages": [{"role": "user", "content": 3}]}, "message 1 has a content of type int instead of text"),
    ({"messages": [{"role": "user", "content": "x"}]}, "messages: has no answer"),
    (
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]},
        "messages: message 2 is an empty answer",
    ),
    (
        {"messages": [{"role": "user", "content": "x " * 50}, {"role": "assistant", "content": "y"}]},
        "tokens do not fit into the context of 64 (too_long: truncate would cut its end off)",
    ),
]


@pytest.mark.parametrize(("row", "message"), UNUSABLE)
def test_a_row_that_cannot_be_used_is_named(
    workload: Callable[..., LanguageModel], row: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        workload([row, *good()])
    assert message in str(caught.value)
    assert "chat.jsonl@0" in str(caught.value)


def test_a_row_that_cannot_be_used_is_left_out_if_the_recipe_says_so(
    workload: Callable[..., LanguageModel],
) -> None:
    quarantine = ("workload.data.integrity=quarantine", "workload.data.quarantine_limit=0.1")
    found = workload([UNUSABLE[-1][0], *good()], *quarantine)
    left_out = found.data_info()["data"]["left_out"]
    assert left_out["count"] == 1
    assert left_out["named"][0]["where"] == "chat.jsonl@0"


def test_long_conversations_are_cut_counted_and_named_if_the_recipe_says_so(
    make: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path, cache: Path
) -> None:
    question, answer = {"role": "user", "content": "step"}, {"role": "assistant", "content": "loss " * 60}
    beyond = [{"role": "user", "content": "x " * 50}, {"role": "assistant", "content": "y"}]
    truncate = "workload.data.conversations.too_long=truncate"
    with pytest.raises(InputError, match="has no answer within the context of 64 tokens"):
        LanguageModel(make([{"messages": beyond}, *good()], truncate).workload, cache)  # type: ignore[arg-type]  # lm
    recipe = make([{"messages": [question, answer]}, *good()], truncate, "steps=2")
    events: list[tuple[str, str]] = []
    run(recipe, tmp_path / "run", on_event=lambda kind, text: events.append((kind, text)))
    (reported,) = [text for kind, text in events if kind == "changed_rows"]
    assert reported.startswith("1 of the data's rows are used in part: chat.jsonl@0 ")
    assert reported.endswith("tokens do not fit into the context of 64: cut to 65")
    info = json.loads((tmp_path / "run" / "run.json").read_text())["data"]
    assert info["changed"]["count"] == 1
    assert info["left_out"]["count"] == 0
    blocks = open_prepared(info["manifest"].rpartition("/")[0]).blocks
    lengths = [
        int(length)
        for split in ("train", "validation", "test")
        for block in blocks(split).scan()
        for row in range(len(block["documents"]))
        for length in block["documents"][row]
    ]
    assert max(lengths) == 65


def test_a_tokenizer_without_a_template_is_rejected(
    workload: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    folder = models.chat(tmp_path / "none", template=None)
    with pytest.raises(InputError, match=r"workload\.model\.pretrained.*has no chat template"):
        workload(good(), f"workload.model.pretrained={folder}")


FORGETFUL = (
    "{% for message in messages %}<s>{{ message.role }}\n"
    "{% if loop.last or message.role == 'user' %}{{ message.content }}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""Leaves out answers that are not the last, as templates do with thoughts."""
STRICT = "{{ raise_exception('roles must alternate') if messages|length > 2 }}" + models.PLAIN


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (FORGETFUL, "the tokens of the conversation up to message 2 are not the beginning of the whole"),
        (STRICT, "is rejected by the chat template (roles must alternate)"),
    ],
)
def test_a_conversation_that_the_template_does_not_write_as_a_whole_is_named(
    workload: Callable[..., LanguageModel], tmp_path: Path, template: str, message: str
) -> None:
    folder = models.chat(tmp_path / "model", template)
    long = {"messages": [each for row in conversations(2, turns=1) for each in row["messages"]]}
    with pytest.raises(InputError) as caught:
        workload([long, *conversations(40, turns=1)], f"workload.model.pretrained={folder}")
    assert "chat.jsonl@0" in str(caught.value)
    assert message in str(caught.value)


def test_parquet_rows_are_read_from_the_column_that_the_recipe_names(
    workload: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    rows = conversations(60)
    for row in rows[:5]:
        row["messages"][0]["name"] = "ada"  # a key that other messages have as null
    path = tmp_path / "chat.parquet"
    parquet.write_table(pa.table({"dialogue": [row["messages"] for row in rows]}), path)
    found = workload(path, "workload.data.conversations.column=dialogue")
    by_lines = workload(rows)
    total = [
        sum(each.num_targets(split, range(each.size(split))) for split in ("train", "validation", "test"))
        for each in (found, by_lines)
    ]
    assert total[0] == total[1] > 0
    with pytest.raises(InputError, match=r"chat\.parquet: has no column messages, only dialogue"):
        workload(path)


def test_the_fingerprint_depends_on_template_context_and_settings(
    workload: Callable[..., LanguageModel], tmp_path: Path, unmarked: Path
) -> None:
    rows = conversations(60, turns=1)
    other = models.chat(tmp_path / "other", models.MARKED + "{# the same text #}")
    changes = [
        [],
        [f"workload.model.pretrained={unmarked}"],
        [f"workload.model.pretrained={other}"],
        ["workload.model.context=60"],
        ["workload.data.conversations.packing=false"],
        ["workload.data.conversations.too_long=truncate"],
    ]
    found = [workload(rows, *each).fingerprint() for each in changes]
    assert len(set(found)) == len(changes)
    assert workload(rows).fingerprint() == found[0]


def test_prepared_conversations_are_used_with_the_same_settings_only(
    workload: Callable[..., LanguageModel], unmarked: Path
) -> None:
    first = workload(conversations(60))
    where = Path(first.files.prepared.where)
    assert workload(where).fingerprint() == first.fingerprint()
    for change, key in (
        ("workload.data.conversations.packing=false", "packing True"),
        (f"workload.model.pretrained={unmarked}", "chat template"),
    ):
        with pytest.raises(InputError, match=f"was prepared with.*{key}"):
            workload(where, change)


def test_the_mask_is_that_of_transformers(chat: Path, unmarked: Path) -> None:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(chat)
    marked = chat_encoder(str(chat), tokenizer_only=False)
    by_prefixes = chat_encoder(str(unmarked), tokenizer_only=True)
    answer_first = [turn(random.Random(1), role, 2) for role in ("assistant", "user", "assistant")]
    for row in [*conversations(20, turns=4), {"messages": answer_first}]:
        expected = theirs.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        tokens, mask = marked.conversation(row["messages"])
        assert (tokens, mask) == (expected["input_ids"], expected["assistant_masks"])
        assert 0 < sum(mask) < len(mask)
        if row["messages"] is not answer_first:
            assert by_prefixes.conversation(row["messages"]) == (tokens, mask)
    with pytest.raises(BadRowError, match="begins with an answer"):
        by_prefixes.conversation(answer_first)


def test_a_trained_model_answers_messages_and_is_evaluated_on_rows(
    make: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path, cache: Path
) -> None:
    result = run(make(conversations(80)), tmp_path / "run")
    predictor = open_predictor(str(tmp_path / "run"), "newest", cache=cache)
    asked = [{"messages": [{"role": "user", "content": "step"}]}, {"text": "step"}]
    by_messages, by_text = predictor(asked, temperature=0, max_tokens=6)
    assert by_messages == by_text
    with pytest.raises(InputError, match="row 0: has no messages and no text"):
        predictor([{"question": "step"}])
    workload: Any = predictor.workload
    rows = conversations(7, seed=5)
    (batch,) = workload.read_samples(rows)
    with torch.no_grad():
        output = workload.forward_loss(predictor.model, batch)
    answers = sum(
        counts for row in rows for _, _, counts in targets_by_hand(Path(_source(predictor)), row["messages"])
    )
    assert int(output.num_targets) == answers == int((batch["targets"] != IGNORED).sum())
    assert np.isfinite(result.metrics["test/loss"])
    with pytest.raises(InputError, match=r"row 1: messages: has no answer"):
        list(workload.read_samples([rows[0], {"messages": asked[0]["messages"]}]))


def _source(predictor: Any) -> str:
    return str(predictor.recipe.workload.model.pretrained)


MISTAKES = [
    (["workload.data.conversations={}"], "workload.data.tokens: `bytes` have no chat template"),
    (["workload.data.conversations={}"], "workload.data.source: has no conversations"),
    (
        ["workload.data.conversations={}", "workload.data.column=body"],
        "workload.data.column: is a column of text",
    ),
    (["workload.data.conversations={kolumn: x}"], "workload.data.conversations.kolumn: unknown key"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES)
def test_settings_that_do_not_fit_are_reported(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("lm-tiny", overrides)
    assert message in str(caught.value)
