"""Architectures of transformers from scratch: trained, exported, and configurations that are rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.training_runs import StopAfter, metric_values, rows_of
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.launch.sky.resources import needs_of
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.lm.workload import LanguageModel

Make = Callable[..., Recipe]
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2}


def model(architecture: str, config: dict[str, Any], **more: Any) -> str:
    document = {"architecture": architecture, "config": config, "context": 32, **more}
    return f"workload.model={json.dumps(document)}"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("tokens", "shape"),
    [("bytes", ("llama", SMALL)), ("bpe", ("gpt2", GPT2)), ("model", ("qwen3", {**SMALL, "head_dim": 16}))],
)
def test_an_architecture_is_trained_stopped_resumed_and_exported(
    tiny: Make,
    run: Callable[..., RunResult],
    cache: Path,
    tmp_path: Path,
    tokens: str,
    shape: tuple[str, Any],
) -> None:
    import transformers

    more = {"tokenizer": str(models.causal(tmp_path / "tokens"))} if tokens == "model" else {}
    recipe = tiny(
        model(*shape, **more),
        f"workload.data.tokens={tokens}",
        "workload.data.vocabulary=300",
        "optimizer.lr=1e-2",
    )
    whole = run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "parts", should_stop=StopAfter(5))
    parts = run(recipe, tmp_path / "parts")
    assert parts.resumed_from == 5
    assert parts.metrics == whole.metrics
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert losses[-1] < 0.9 * losses[0]
    trained: Any = load_run(str(tmp_path / "whole"), "newest", cache=cache)
    trained.workload.export(trained.model, tmp_path / "export")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    assert theirs.config.model_type == shape[0]
    batch = trained.workload.batch("validation", [0, 1])["inputs"]
    expected = trained.model(batch)
    torch.testing.assert_close(theirs(batch).logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        trained.workload.import_(tmp_path / "export")(batch), expected, atol=1e-5, rtol=1e-5
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    text = "the tensor sums"
    assert tokenizer(text).input_ids == trained.workload.encoder.encode([text.encode()])[0].tolist()
    predictor = open_predictor(str(tmp_path / "whole"), "newest", cache=cache)
    assert isinstance(predictor([{"text": text}], max_tokens=4)[0]["text"], str)


CONFIGURATIONS = [
    (model("lama", {}), r"workload\.model\.architecture: `lama` is not a causal.*did you mean `llama`"),
    (model("bert_generation", {}), r"workload\.model\.architecture: `bert_generation` is not a causal"),
    (
        model("llama", {**SMALL, "hiden_size": 3}),
        r"workload\.model\.config\.hiden_size: is not a value of LlamaConfig.*did you mean `hidden_size`",
    ),
    (model("llama", {**SMALL, "vocab_size": 100}), r"config\.vocab_size: is 100, for 256 tokens of the data"),
    (
        model("llama", {**SMALL, "max_position_embeddings": 16}),
        r"config\.max_position_embeddings: is 16, for 32 tokens of workload\.model\.context",
    ),
    (model("llama", {**SMALL, "hidden_size": "wide"}), r"workload\.model\.config: llama cannot be built"),
    (model("llama", {**SMALL, "num_attention_heads": 3}), r"workload\.model\.config: llama cannot be built"),
]


@pytest.mark.parametrize(("override", "message"), CONFIGURATIONS)
def test_a_configuration_that_the_architecture_does_not_have_is_rejected(
    tiny: Make, cache: Path, override: str, message: str
) -> None:
    settings: Any = tiny(override).workload
    with pytest.raises(InputError) as caught:
        LanguageModel(settings, cache)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_positions_and_vocabulary_follow_from_context_and_tokens(tiny: Make, cache: Path) -> None:
    settings: Any = tiny(model("gpt2", GPT2)).workload
    config = LanguageModel(settings, cache).build_model().inner.config  # type: ignore[union-attr]  # Causal
    assert (config.n_positions, config.vocab_size, config.eos_token_id) == (32, 256, 0)
    padded: Any = tiny(model("gpt2", {**GPT2, "vocab_size": 320, "n_positions": 64})).workload
    built: Any = LanguageModel(padded, cache).build_model()
    assert built.inner.transformer.wte.weight.shape == (320, 32)
    assert built.inner.transformer.wpe.weight.shape == (64, 32)


def test_a_launch_does_not_count_it_as_the_gpt() -> None:
    recipe = load_recipe("lm-tiny", [model("llama", SMALL)])
    assert needs_of(recipe).parameters is None


MISTAKES = [
    (["workload.model.architecture=llama"], "workload.model.layers: belongs to the GPT"),
    (
        ["workload.model.config={hidden_size: 3}"],
        "workload.model.config: these values configure an architecture",
    ),
    (["workload.model.tokenizer=x"], "workload.model.tokenizer: only an architecture has a tokenizer"),
    (
        [model("llama", {}, pretrained="x"), "workload.data.tokens=model"],
        "workload.model.architecture: a pretrained model has its own",
    ),
    ([model("llama", {}, tokenizer="x")], "workload.model.tokenizer: `bytes` do not use a tokenizer"),
    (
        [model("llama", {}), "workload.data.tokens=model"],
        "workload.data.tokens: there is no pretrained model or tok",
    ),
    ([model("llama", {}), "sharding.meta_init=true"], "sharding.meta_init: an architecture of transformers"),
    ([model("llama", {}, lora={"rank": 2})], "workload.model.lora: LoRA leaves the model's own weights"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES)
def test_settings_that_do_not_fit_are_reported(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("lm-tiny", overrides)
    assert message in str(caught.value)
