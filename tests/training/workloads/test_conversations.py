"""Fine-tuning on conversations: which tokens are targets, packing, and inputs that cannot be used."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from pyarrow import parquet

from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.data import BadRowError
from trainfleet.training.data.prepared import open_prepared
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.lm.chat import chat_encoder
from trainfleet.training.workloads.lm.packing import IGNORED, best_fit
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


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("template", ["chat", "unmarked"])
def test_the_loss_is_that_of_the_answers_by_hand(
    workload: Callable[..., LanguageModel],
    request: pytest.FixtureRequest,
    template: str,
    packing: bool,
) -> None:
    """With a template that marks the answers and one that does not, of conversations one by one."""
    name: Path = request.getfixturevalue(template)
    rows = conversations(60)
    found = workload(
        rows,
        f"workload.model.pretrained={name}",
        f"workload.data.conversations.packing={str(packing).lower()}",
    )
    torch.manual_seed(1)
    model = found.build_model().eval()
    total, count, right = 0.0, 0, 0
    with torch.no_grad():
        for row in rows:
            pairs = list(targets_by_hand(name, row["messages"]))
            logits: torch.Tensor = model(torch.tensor([[first for first, _, _ in pairs]]))[0]
            chosen = torch.tensor([counts for _, _, counts in pairs])
            targets = torch.tensor([second for _, second, _ in pairs])
            total += float(F.cross_entropy(logits[chosen], targets[chosen], reduction="sum"))
            right += int((logits.argmax(-1) == targets)[chosen].sum())
            count += int(chosen.sum())
        outputs = [
            found.forward_loss(model, found.batch(split, [index]))
            for split in ("train", "validation", "test")
            for index in range(found.size(split))
        ]
    assert sum(float(each.num_targets) for each in outputs) == count
    assert sum(float(each.loss) for each in outputs) == pytest.approx(total, rel=1e-5)
    accuracy = [each.metric_sums["accuracy"] for each in outputs]
    assert (sum(int(a) for a, _ in accuracy), sum(int(b) for _, b in accuracy)) == (right, count)


def test_the_number_of_targets_of_a_global_batch_is_that_of_its_micro_batches(
    workload: Callable[..., LanguageModel],
) -> None:
    found = workload(conversations(60))
    model = found.build_model()
    indices = list(range(found.size("train")))
    parts = [indices[:2], indices[2:3], indices[3:]]
    counts = [float(found.forward_loss(model, found.batch("train", part)).num_targets) for part in parts]
    assert [found.num_targets("train", part) for part in parts] == counts
    assert found.num_targets("train", indices) == sum(counts)


ARCHITECTURES = {
    "llama": {},
    "qwen3": {"head_dim": 16},
    "gpt2": {},
    "mistral": {"sliding_window": 6, "head_dim": 16},
    "gemma3_text": {"sliding_window": 6, "head_dim": 16},
}


def architecture(kind: str, more: dict[str, Any]) -> dict[str, Any]:
    if kind == "gpt2":
        return {"n_embd": 32, "n_layer": 2, "n_head": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, **heads, **more}


def from_scratch(kind: str, tokenizer: Path, config: dict[str, Any]) -> str:
    model = {"architecture": kind, "tokenizer": str(tokenizer), "context": 64, "config": config}
    return f"workload.model={json.dumps(model)}"


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_conversations_have_the_logits_of_each_alone(
    workload: Callable[..., LanguageModel], chat: Path, kind: str
) -> None:
    rows = conversations(60)
    settings = from_scratch(kind, chat, architecture(kind, ARCHITECTURES[kind]))
    found = workload(rows, settings)
    torch.manual_seed(1)
    model: Any = found.build_model().eval()
    several = 0
    with torch.no_grad():
        for index in range(found.size("train")):
            batch = found.batch("train", [index])
            logits = model(batch["inputs"], batch["positions"])[0]
            starts = [place for place, at in enumerate(batch["positions"][0].tolist()) if at == 0]
            several += len(starts) > 2
            for start, end in zip(starts, [*starts[1:], 64], strict=True):
                alone = model(batch["inputs"][:, start:end])[0]
                torch.testing.assert_close(logits[start:end], alone, atol=1e-5, rtol=1e-4)
    assert several > 3
    # The comparison can fail: without positions, documents attend to one another.
    assert not torch.allclose(model(batch["inputs"])[0], logits, atol=1e-3)


def test_a_model_that_ignores_documents_is_rejected_with_packing(
    workload: Callable[..., LanguageModel], chat: Path
) -> None:
    size: dict[str, Any] = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2}
    size["num_attention_heads"] = 2
    size["word_embed_proj_dim"] = 32
    opt = from_scratch("opt", chat, size)
    packed = workload(conversations(60), opt)
    with pytest.raises(InputError, match=r"packing: `opt` computes with the other documents"):
        packed.build_model()
    workload(conversations(60), opt, "workload.data.conversations.packing=false").build_model()


def test_packing_keeps_each_conversation_once_and_whole(workload: Callable[..., LanguageModel]) -> None:
    rows = conversations(80, turns=1)
    packed, single = workload(rows), workload(rows, "workload.data.conversations.packing=false")

    def documents(found: LanguageModel) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        all_of = []
        for block in found.files.blocks["train"].scan():
            for row in range(len(block["tokens"])):
                start = 0
                for length in block["documents"][row].tolist():
                    part = slice(start, start + length)
                    all_of.append(
                        (
                            tuple(block["tokens"][row][part].tolist()),
                            tuple(block["answers"][row][part].tolist()),
                        )
                    )
                    start += length
        return sorted(all_of)

    assert documents(packed) == documents(single)
    assert packed.size("train") < 0.7 * single.size("train")


def test_bins_are_full_and_hold_each_size_once() -> None:
    rng = random.Random(3)
    sizes = [rng.randint(1, 100) for _ in range(500)]
    bins = best_fit(sizes, 100)
    assert sorted(place for each in bins for place in each) == list(range(500))
    totals = [sum(sizes[place] for place in each) for each in bins]
    assert max(totals) <= 100
    assert len(bins) <= sum(sizes) / 100 * 1.06
    assert bins == best_fit(sizes, 100)


@pytest.mark.parametrize("lora", ["null", "{rank: 4, targets: [q_proj, v_proj]}"])
def test_a_fine_tuning_is_stopped_resumed_and_ends_with_the_same_bits(
    make: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path, lora: str
) -> None:
    recipe = make(conversations(80), f"workload.model.lora={lora}")
    whole = run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", should_stop=StopAfter(3))
    parts = run(recipe, tmp_path / "parts")
    assert parts.resumed_from == 3
    assert parts.metrics == whole.metrics
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert losses == metric_values(rows_of(tmp_path / "parts"), "loss")
    assert losses[-1] < (0.9 if lora == "null" else 1.0) * losses[0]
    assert "bigram_nats_per_byte" in whole.baseline


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_of_other_sizes_give_the_same_losses(
    make: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path, micro_batch: int
) -> None:
    """Samples have different numbers of targets, so means of means would differ."""
    losses = []
    for size in (6, micro_batch):
        recipe = make(conversations(80), f"batch.micro_batch={size}", "steps=4")
        run(recipe, tmp_path / f"run{size}")
        rows = rows_of(tmp_path / f"run{size}")
        losses.append(metric_values(rows, "loss") + metric_values(rows, "validation/loss", "validation"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_ranks_give_the_losses_of_one(
    make: Callable[..., Recipe],
    run: Callable[..., RunResult],
    run_ranks: Callable[..., list[int]],
    tmp_path: Path,
) -> None:
    recipe = make(conversations(80), "steps=4")
    run(recipe, tmp_path / "one")
    assert run_ranks(recipe, tmp_path / "two", 2) == [0, 0]
    one, two = (
        metric_values(rows_of(tmp_path / each), "loss")
        + metric_values(rows_of(tmp_path / each), "validation/loss", "validation")
        for each in ("one", "two")
    )
    assert one == pytest.approx(two, rel=1e-5)


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
