"""The language model after training: sampling and export; and pretrained models of transformers, trained in
full or with LoRA.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.training_runs import metric_values, rows_of
from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.workloads.lm.hf_tokenizer import model_encoder
from trainfleet.training.workloads.lm.sampling import generate, sample
from trainfleet.training.workloads.lm.settings import LmSettings, SamplingSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

Settings = Callable[..., LmSettings]
PRETRAINED = ("workload.data.tokens=model", "workload.model.context=16")


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.causal(tmp_path_factory.mktemp("causal"))


@pytest.fixture
def own(tiny: Callable[..., Recipe], cache: Path) -> Callable[..., LanguageModel]:
    def make(*overrides: str) -> LanguageModel:
        settings = tiny("workload.model={layers: 2, width: 16, heads: 2, context: 12}", *overrides).workload
        assert isinstance(settings, LmSettings)
        return LanguageModel(settings, cache)

    return make


def with_random_weights(workload: LanguageModel) -> torch.nn.Module:
    torch.manual_seed(3)
    model = workload.build_model()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_an_exported_gpt_gives_transformers_the_same_logits_and_the_same_tokens(
    own: Callable[..., LanguageModel], tmp_path: Path, tokens: str
) -> None:
    import transformers

    workload = own(f"workload.data.tokens={tokens}", "workload.data.vocabulary=300")
    model = with_random_weights(workload)
    workload.export(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    batch = workload.batch("validation", [0, 1])["inputs"]
    torch.testing.assert_close(theirs(batch).logits, model(batch), atol=2e-5, rtol=2e-5)
    text = "the café sums"
    expected = workload.files.encoder.encode([text.encode()])[0].tolist()
    assert tokenizer(text).input_ids == expected
    assert tokenizer.decode(expected) == text
    assert torch.equal(workload.import_(tmp_path)(batch), model(batch))


def test_a_gpt_that_transformers_does_not_have_is_loaded_by_its_own_loader(
    own: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    workload = own("workload.model.mlp=gelu")
    model = with_random_weights(workload)
    workload.export(model, tmp_path)
    batch = workload.batch("validation", [0, 1])["inputs"]
    assert torch.equal(workload.import_(tmp_path)(batch), model(batch))


def test_sampling_follows_from_the_seed(own: Callable[..., LanguageModel]) -> None:
    workload = own()
    model = with_random_weights(workload)
    batch = workload.read([{"text": "the step"}, {"text": ""}])
    state = torch.get_rng_state()
    first, again, other = (workload.predict(model, batch, max_tokens=20, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)


def test_padding_does_not_change_the_continuation_of_a_prompt(own: Callable[..., LanguageModel]) -> None:
    workload = own()
    model = with_random_weights(workload)
    rows = [{"text": "a"}, {"text": "the gradient of a tensor is longer than the context"}]
    together = workload.predict(model, workload.read(rows), max_tokens=15, temperature=0)
    alone = [workload.predict(model, workload.read([row]), max_tokens=15, temperature=0)[0] for row in rows]
    assert together == alone


def test_a_continuation_does_not_depend_on_the_other_rows_of_its_batch(
    own: Callable[..., LanguageModel],
) -> None:
    workload = own()
    model = with_random_weights(workload)
    rows = [{"text": "a"}, {"text": "the gradient of a tensor"}, {"text": "a"}]
    lists = {"seed": [1, 2, 3], "max_tokens": [30, 4, 12], "temperature": [1.0, 0.0, 2.0]}
    together = workload.predict(model, workload.read(rows), **lists)
    alone = [
        workload.predict(model, workload.read([row]), **{name: value[place] for name, value in lists.items()})
        for place, row in enumerate(rows)
    ]
    assert together == [each[0] for each in alone]
    assert together[0]["text"][:8] != together[2]["text"][:8]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_cache_gives_the_same_tokens_within_and_beyond_the_context(
    own: Callable[..., LanguageModel], temperature: float
) -> None:
    """In fp32. Prompts of 1 to 30 tokens for a context of 12, which end after different numbers of tokens."""
    workload = own()
    model: Any = with_random_weights(workload)
    prompts = [[1], list(range(2, 12)), list(range(20, 32)), list(range(40, 70)), [5, 6]]
    options = [
        SamplingSettings(max_tokens=count, temperature=temperature, seed=number, top_k=0)
        for number, count in enumerate((25, 3, 9, 14, 2))
    ]
    seen: list[tuple[int, ...]] = []
    hook = model.embedding.register_forward_hook(lambda _, tokens, __: seen.append(tuple(tokens[0].shape)))

    def made(use_cache: bool) -> list[list[int]]:
        seen.clear()
        return generate(model, prompts, options, context=12, end=0, use_cache=use_cache)

    without = made(use_cache=False)
    assert all(shape[1] > 1 for shape in seen[1:])
    assert made(use_cache=True) == without
    assert sum(shape[1] == 1 for shape in seen) >= 10
    hook.remove()


def chosen(*values: float, count: int = 500, **settings: Any) -> set[int]:
    """The tokens that are sampled from these logits."""
    options = [SamplingSettings(**{"temperature": 1.0, "top_k": 0, **settings})] * count
    draws = torch.linspace(0, 1, count + 1)[:-1]
    return set(sample(torch.tensor([values]).expand(count, -1), options, draws).tolist())


def test_sampling_uses_only_the_most_likely_tokens() -> None:
    logits = (0.0, 3.0, 2.9, -1.0)
    assert chosen(*logits, top_k=2) == {1, 2}
    assert chosen(*logits) == {0, 1, 2, 3}
    assert chosen(*logits, temperature=0) == {1}
    # Their probabilities are 0.025, 0.498, 0.451 and 0.009.
    assert chosen(*logits, top_p=0.4) == {1}
    assert chosen(*logits, top_p=0.9) == {1, 2}
    assert chosen(*logits, top_p=0.98) == {0, 1, 2}
    mixed = [SamplingSettings(temperature=0), SamplingSettings(temperature=1.0, top_k=0)]
    assert sample(torch.tensor([logits] * 2), mixed, torch.tensor([0.999, 0.999])).tolist() == [1, 3]


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    count = 20_000
    options = [SamplingSettings(temperature=0.5, top_k=0)] * count
    found = sample(logits.expand(count, -1), options, torch.rand(count, generator=torch.manual_seed(1)))
    shares = found.bincount(minlength=3) / count
    torch.testing.assert_close(shares, (logits[0] / 0.5).softmax(-1), atol=0.01, rtol=0)


def test_an_invalid_prompt_and_settings_out_of_range_are_reported(own: Callable[..., LanguageModel]) -> None:
    workload = own()
    with pytest.raises(InputError, match=r"row 0(.|\n)*row 2"):
        workload.read([{"prompt": "x"}, {"text": "a"}, {"text": 3}])
    with pytest.raises(InputError, match=r"temperature: .*-1"):
        workload.predict(workload.build_model(), workload.read([{"text": "a"}]), temperature=-1)


def test_the_tokens_of_a_model_decode_to_the_text(causal: Path) -> None:
    encoder = model_encoder(str(causal))
    text = "the tensor café 😀"
    tokens = encoder.encode([text.encode()])[0]
    assert b"".join(encoder.spelling[token] for token in tokens) == text.encode()
    assert len(encoder.spelling) == encoder.vocabulary > int(tokens.max())
    assert encoder.spelling[encoder.end] == b"\0"


@pytest.mark.deep
@pytest.mark.parametrize("lora", ["null", "{rank: 4, targets: [q_proj, v_proj]}"])
def test_a_pretrained_model_is_trained_stopped_resumed_exported_and_sampled(
    tiny: Callable[..., Recipe],
    run: Callable[..., RunResult],
    causal: Path,
    cache: Path,
    tmp_path: Path,
    lora: str,
) -> None:
    import transformers

    recipe = tiny(
        f"workload.model.pretrained={causal}",
        f"workload.model.lora={lora}",
        *PRETRAINED,
        "steps=8",
        "optimizer.lr=1e-2",
        "log.every=2",
    )
    whole = run(recipe, tmp_path / "whole")
    asked = iter([False] * 4 + [True] * 9)
    run(recipe, tmp_path / "parts", should_stop=lambda: next(asked))
    parts = run(recipe, tmp_path / "parts")
    assert parts.resumed_from
    assert parts.metrics == whole.metrics
    losses = metric_values(rows_of(tmp_path / "whole"), "loss")
    assert losses[-1] < losses[0]
    trained = load_run(str(tmp_path / "whole"), "newest", cache=cache)
    workload: Any = trained.workload
    workload.export(trained.model, tmp_path / "export")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    batch = workload.batch("validation", [0, 1])["inputs"]
    torch.testing.assert_close(theirs(batch).logits, trained.model(batch), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        workload.import_(tmp_path / "export")(batch), trained.model(batch), atol=1e-5, rtol=1e-5
    )
    before = transformers.AutoModelForCausalLM.from_pretrained(causal)
    same = torch.equal(before.model.layers[0].mlp.up_proj.weight, theirs.model.layers[0].mlp.up_proj.weight)
    assert same == (lora != "null")
    _each_row_has_settings_of_its_own(workload, trained.model)


def _each_row_has_settings_of_its_own(workload: Any, model: torch.nn.Module) -> None:
    rows = [{"text": "the"}, {"text": "a tensor sums"}]
    found = workload.predict(model, workload.read(rows), max_tokens=5)
    assert len(found) == 2
    assert all(isinstance(each["text"], str) for each in found)
    received = ["", ""]
    together = workload.predict(
        model,
        workload.read(rows),
        max_tokens=[9, 3],
        seed=[1, 2],
        temperature=[0.9, 0.0],
        hear=lambda row, text: received.__setitem__(row, received[row] + text),
    )
    assert [each["text"] for each in together] == received
    for row, settings, expected in zip(
        rows,
        ({"max_tokens": 9, "seed": 1, "temperature": 0.9}, {"max_tokens": 3, "temperature": 0}),
        together,
        strict=True,
    ):
        assert workload.predict(model, workload.read([row]), **settings) == [expected]


MISTAKES = [
    (
        "workload.model.pretrained=/nowhere",
        "workload.data.tokens: `bytes` are not the tokens that the pretrained model knows",
    ),
    ("workload.data.tokens=model", "workload.data.tokens: there is no pretrained model"),
    ("workload.model.lora={rank: 2}", "workload.model.lora: LoRA leaves the model's own weights as they are"),
    ("workload.model.lora={rang: 2}", "workload.model.lora.rang: unknown key"),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES)
def test_conflicting_settings_are_reported(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("lm-tiny", [override])
    assert message in str(caught.value)


def test_a_missing_model_or_layer_is_one_clear_error(
    tiny: Callable[..., Recipe], run: Callable[..., RunResult], causal: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="nowhere"):
        run(tiny(f"workload.model.pretrained={tmp_path}/nowhere", *PRETRAINED), tmp_path / "a")
    with pytest.raises(InputError, match=r"no_such: the model has(.|\n)*q_proj"):
        run(
            tiny(
                f"workload.model.pretrained={causal}", "workload.model.lora={targets: [no_such]}", *PRETRAINED
            ),
            tmp_path / "b",
        )
