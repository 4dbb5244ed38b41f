"""docs/fine-tuning.md: its commands run in order as written, and its recipe learns what the page claims."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples import tiny_chat, tiny_image, tiny_speech
from tests.training.training_runs import metric_values, rows_of
from tools.pages import ROOT, blocks
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.trainer.context import RunResult

NAME = "tests/training/test_fine_tuning_page.py"
BLOCKS = blocks((ROOT / "docs" / "fine-tuning.md").read_text(encoding="utf-8"))


def commands() -> list[str]:
    """The commands of the page; other lines of a block are output."""
    found = "".join(each.body for each in BLOCKS if each.kind == "run" and each.value == NAME)
    return [line.removeprefix("$ ") for line in found.splitlines() if line.startswith("$ ")]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page's first command writes, with fewer conversations."""
    rows = tiny_chat.conversations(240)
    tiny_chat.write_model(tmp_path / "chat" / "model", rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "chat" / "conversations.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.deep
def test_the_recipe_of_the_page_learns_to_answer(
    chat: Path, run: Callable[..., RunResult], cache: Path
) -> None:
    """In this process and shorter, from the conversations to an answer of the exported model."""
    import transformers

    short = [
        "steps=120",
        "validation.every=120",
        "checkpoint.every=120",
        "batch.global_batch=8",
        "log.every=1",
    ]
    recipe = load_recipe(
        ROOT / "recipes" / "chat-tiny.yaml", [*short, "scaling.workers=1", "log.tensorboard=false"]
    )
    result = run(recipe, chat / "run")
    losses = metric_values(rows_of(chat / "run"), "loss")
    assert losses[0] > 5
    assert result.metrics["test/loss"] < 0.5, losses
    assert result.metrics["test/nats_per_byte"] < 0.3 * result.baseline["bigram_nats_per_byte"]
    question = [{"role": "user", "content": "What is the opposite of hot?"}]
    predictor = open_predictor(str(chat / "run"), "newest", cache=cache)
    (answer,) = predictor([{"messages": question}], temperature=0, max_tokens=20)
    assert re.fullmatch(r"The opposite of \w+ is \w+\.", answer["text"])
    workload: Any = predictor.workload
    workload.export(predictor.model, chat / "export")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(chat / "export").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(chat / "export")
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    made = theirs.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(made, skip_special_tokens=True) == answer["text"]


def test_the_page_shows_each_step_and_the_recipe_that_it_runs() -> None:
    found = commands()
    names = [line.split()[1] for line in found if line.startswith("trainfleet ")]
    chat = ["train", "train", "predict", "evaluate", "publish", "train"]
    assert names == [*chat, "train", "predict", "publish", "train", "train", "publish", "train", "train"]
    shown = [each.body for each in BLOCKS if each.language == "yaml" and each.kind != "file"]
    recipes = ("chat-tiny", "speech-finetune-tiny", "vision-finetune-tiny")
    for name, block in zip(recipes, shown, strict=True):
        assert block in (ROOT / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    first = json.dumps(tiny_chat.conversations(1)[0])
    assert first in next(each.body for each in BLOCKS if each.value == NAME)


@pytest.mark.deep
def test_the_whisper_of_the_page_learns_to_write_numbers(
    tmp_path: Path, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process and shorter: no number is recognised yet, but the loss per token is far below random."""
    monkeypatch.chdir(tmp_path)
    tiny_speech.write_recordings(tmp_path / "speech" / "recordings", (130, 170))
    tiny_speech.write_model(tmp_path / "speech" / "model")
    short = ["steps=40", "validation.every=40", "checkpoint.every=40", "log.every=1", "optimizer.warmup=5"]
    recipe = load_recipe(
        ROOT / "recipes" / "speech-finetune-tiny.yaml", [*short, "scaling.workers=1", "log.tensorboard=false"]
    )
    result = run(recipe, tmp_path / "run")
    losses = metric_values(rows_of(tmp_path / "run"), "loss")
    assert losses[0] > 5
    assert result.metrics["test/loss"] < 2.5


@pytest.mark.deep
def test_the_vit_of_the_page_learns_the_digits(
    tmp_path: Path, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process and shorter."""
    monkeypatch.chdir(tmp_path)
    tiny_image.write_model(tmp_path / "image" / "model")
    short = ["steps=120", "validation.every=120", "checkpoint.every=120", "batch.global_batch=32"]
    recipe = load_recipe(
        ROOT / "recipes" / "vision-finetune-tiny.yaml", [*short, "scaling.workers=1", "log.tensorboard=false"]
    )
    result = run(recipe, tmp_path / "run")
    assert result.metrics["test/accuracy"] > 3 * result.baseline["majority_accuracy"]


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(1800)
def test_the_commands_run_in_order(tmp_path: Path) -> None:
    """In a folder that holds only the recipes, the examples and the page's own file, in one shell."""
    for name in ("recipes", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in BLOCKS:
        if block.kind == "file":
            (tmp_path / block.value).write_text(block.body)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -e -o pipefail", *commands()])],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    answers = (tmp_path / "answers" / "part-000000.jsonl").read_text()
    assert json.loads(answers)["prediction"]["text"].startswith("The opposite of hot is ")
    provenance = json.loads((tmp_path / "chat" / "published" / "provenance.json").read_text())
    assert all(gate["passed"] for gate in provenance["gates"])
    assert (tmp_path / "chat" / "published" / "chat_template.jinja").is_file()
    parts = sorted((tmp_path / "transcripts").glob("part-*.jsonl"))
    transcripts = "".join(part.read_text() for part in parts).splitlines()
    spoken = [json.loads(line)["prediction"]["text"] for line in transcripts]
    assert len(spoken) == len(tiny_speech.VOICES) * len(tiny_speech.SPEEDS)
    assert spoken.count("sieben") > 0.8 * len(spoken)
    for run, metric, low, high in (
        ("speech-lora", "test/wer", 0.0, 0.3),
        ("vision-frozen", "test/accuracy", 0.8, 1.0),
        ("vision-lora", "test/accuracy", 0.8, 1.0),
    ):
        result = json.loads((tmp_path / "runs" / run / "run.json").read_text())["result"]
        assert low <= result["metrics"][metric] <= high, run
    _same_in_transformers(tmp_path)


def _same_in_transformers(folder: Path) -> None:
    """transformers reads the published folders, and its outputs are those of `predict`."""
    import transformers

    predictor = open_predictor(str(folder / "speech" / "published"))
    path = next((folder / "speech" / "recordings").glob("drei-*.wav"))
    batch = predictor.workload.read([{"audio": str(path)}])
    theirs: Any = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(folder / "speech" / "published")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "speech" / "published")
    made = theirs.eval().generate(batch["sound"], max_new_tokens=15, do_sample=False)
    assert tokenizer.decode(made[0], skip_special_tokens=True) == predictor([{"audio": str(path)}])[0]["text"]
    labels = transformers.AutoConfig.from_pretrained(folder / "image" / "published").id2label
    assert labels == dict(enumerate("0123456789"))
