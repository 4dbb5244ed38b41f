"""Models of transformers compute their loss without the logits of all tokens, or say that they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.training_runs import agrees, metric_values, rows_of, train_all
from tests.training.workloads import models
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.strategies import wrap
from trainfleet.training.workloads import output_head
from trainfleet.training.workloads.base import IGNORED
from trainfleet.training.workloads.lm.pretrained import Causal
from trainfleet.training.workloads.lora import with_lora
from trainfleet.training.workloads.settings import LoraSettings
from trainfleet.training.workloads.speech.pretrained import Seq2SeqModel

Make = Callable[..., Recipe]
VOCABULARY, CHUNK, SHAPE = 500, 20, (3, 16)
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
TIED, OWN = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SMALL | OWN),
    "llama, tied": ("llama", SMALL | TIED),
    "mistral": ("mistral", SMALL | OWN),
    "qwen2": ("qwen2", {key: value for key, value in SMALL.items() if key != "head_dim"} | TIED),
    "gpt2": ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "gemma2, with a cap": ("gemma2", SMALL | {"final_logit_softcapping": 2.0}),
    "cohere, with a factor": ("cohere", SMALL | {"logit_scale": 0.25}),
    "granite, with a divisor": ("granite", SMALL | {"logits_scaling": 3.0}),
    "phi, with a bias": ("phi", {k: v for k, v in SMALL.items() if k != "head_dim"} | {"num_key_value_heads": 2}),
    "opt": ("opt", {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "word_embed_proj_dim": 16, "max_position_embeddings": 64}),
    "mixtral": ("mixtral", SMALL | {"num_local_experts": 2}),
}  # fmt: skip


def causal(name: str, **more: Any) -> Causal:
    """A tiny model whose logits are as large as those of a trained one."""
    import transformers

    kind, values = ARCHITECTURES[name]
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=VOCABULARY, **special, **values)
    torch.manual_seed(0)
    inner = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        head = inner.get_output_embeddings()
        head.weight.mul_(20)
        if head.bias is not None:
            head.bias.normal_()
    return Causal(inner, chunk=CHUNK, **more)


def batch(documents: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Tokens, positions and targets; with documents, two in each row, and targets in answers only."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (SHAPE[0], SHAPE[1] + 1), generator=random)
    targets = tokens[:, 1:].clone()
    if not documents:
        return tokens[:, :-1], None, targets
    targets[:, :3] = targets[:, 7:11] = IGNORED
    positions = torch.cat((torch.arange(7), torch.arange(SHAPE[1] - 7))).expand(SHAPE)
    return tokens[:, :-1], positions.contiguous(), targets


class Logits(TorchDispatchMode):
    """The largest number of rows of a tensor [..., VOCABULARY] that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, Tensor) and each.ndim > 1 and each.shape[-1] == VOCABULARY:
                self.rows = max(self.rows, each.numel() // VOCABULARY)
        return result


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    (loss * 0.3).backward()  # type: ignore[no-untyped-call]  # torch is partly typed
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("documents", [False, True], ids=["text", "packed answers"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_loss_and_gradients_are_those_of_all_logits_of_which_only_a_chunk_exists(
    name: str, documents: bool
) -> None:
    notes: list[str] = []
    model, (tokens, positions, targets) = causal(name, note=notes.append), batch(documents)
    model.eval()  # no dropout
    logits: Any = model(tokens, positions)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED)
    right = gradients(model, expected)
    with Logits() as made:
        loss, correct = model(tokens, positions, targets, count_correct=True)
        found = gradients(model, loss)
    assert notes == []
    assert made.rows <= CHUNK < tokens.numel()
    torch.testing.assert_close(loss, expected)
    assert int(correct) == int((logits.argmax(dim=-1) == targets).sum())
    assert found.keys() == right.keys()
    for each, value in right.items():
        torch.testing.assert_close(found[each], value, msg=each, rtol=1e-4, atol=1e-5)


def test_the_caps_and_factors_of_architectures_change_their_losses() -> None:
    """Otherwise the comparisons above would pass without them."""
    tokens, _, targets = batch(documents=False)
    for name in ("gemma2, with a cap", "cohere, with a factor", "granite, with a divisor"):
        model = causal(name).eval()
        loss, _ = model(tokens, None, targets)
        (head,) = model.loss._heads.values()
        hidden = model.inner.base_model(input_ids=tokens)[0]
        without, _ = model.loss.chunked(hidden, model.inner.get_output_embeddings().weight, targets)
        assert head is not None
        assert abs(float(loss / without) - 1) > 0.01, name


@pytest.mark.parametrize("targets", [(), ("lm_head", "q_proj")], ids=["all linear layers", "and the head"])
def test_adapters_are_trained_as_with_all_logits(targets: tuple[str, ...]) -> None:
    notes: list[str] = []
    model, (tokens, positions, expected_tokens) = causal("llama", note=notes.append), batch(documents=True)
    torch.manual_seed(2)
    model.inner = with_lora(model.inner, LoraSettings(rank=2, targets=targets), task="CAUSAL_LM")
    for name, each in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(each)
    model.eval().double()  # the gradients of such adapters lose four digits to rounding
    logits: Any = model(tokens, positions)
    expected = F.cross_entropy(logits.flatten(0, 1), expected_tokens.flatten(), reduction="sum")
    right = gradients(model, expected)
    with Logits() as made:
        loss, _ = model(tokens, positions, expected_tokens)
        found = gradients(model, loss)
    # Adapters of the head: the loss of all logits is a float32.
    torch.testing.assert_close(loss, expected.to(loss.dtype))
    assert found.keys() == right.keys()
    assert all("lora" in name for name in found)
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, msg=name, rtol=1e-4, atol=1e-5)
    if "lm_head" in targets:
        assert made.rows == tokens.numel()
        (note,) = notes
        assert "logits of all tokens" in note
        assert "adapters" in note
    else:
        assert made.rows <= CHUNK
        assert notes == []


class Doubled(nn.Module):
    """Changes what it gets."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def changed(model: Any, change: str) -> None:
    """Let the model compute something of its own around its head."""
    inner = model.inner
    forward = inner.forward

    def capped(**given: Any) -> Any:
        out = forward(**given)
        out.logits = out.logits.clamp(max=30.0)
        return out

    def hidden_token(**given: Any) -> Any:
        out = forward(**given)
        out.logits = out.logits.clone()
        out.logits[:, :, 7] = -1e4
        return out

    if change == "dropout":
        inner.lm_head.register_forward_pre_hook(
            lambda module, given: F.dropout(given[0], 0.1, module.training)
        )
    elif change == "hidden states":
        inner.lm_head.register_forward_pre_hook(lambda _, given: given[0] * 2)
    elif change == "inputs":
        inner.forward = lambda input_ids, **given: forward(input_ids=(input_ids + 1) % VOCABULARY, **given)
    elif change == "another head":
        inner.lm_head = nn.Sequential(inner.lm_head, Doubled())
    else:
        inner.forward = {"clamped": capped, "a token": hidden_token}[change]


@pytest.mark.parametrize(
    "change", ["dropout", "hidden states", "inputs", "another head", "clamped", "a token"]
)
def test_what_is_not_known_is_computed_with_all_logits_and_noted_once(change: str) -> None:
    notes: list[str] = []
    model, (tokens, _, targets) = causal("llama", note=notes.append), batch(documents=False)
    changed(model, change)
    model.train()
    torch.manual_seed(3)
    logits: Any = model(tokens)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    for _ in range(2):
        torch.manual_seed(3)
        loss, correct = model(tokens, None, targets, count_correct=True)
        torch.testing.assert_close(loss, expected)
        assert int(correct) == int((logits.argmax(dim=-1) == targets).sum())
    (note,) = notes
    assert "takes more memory" in note
    assert all(each.training for each in model.modules())


@pytest.mark.parametrize("utterances", [1, 4])
def test_whisper_computes_the_mean_loss_of_each_utterance_in_chunks(tmp_path: Path, utterances: int) -> None:
    import transformers

    inner = transformers.WhisperForConditionalGeneration.from_pretrained(models.whisper(tmp_path))
    notes: list[str] = []
    model = Seq2SeqModel(inner, {}, [257], 256, 8, note=notes.append)
    model.loss.chunked.chunk = 4
    torch.manual_seed(1)
    sound = torch.randn(utterances, 16, 400)
    before = torch.randint(256, (utterances, 6))
    targets = torch.randint(256, (utterances, 6))
    targets[-1, 2:] = IGNORED
    logits = inner(sound, decoder_input_ids=before).logits
    losses = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    expected = (losses.sum(dim=1) / (targets != IGNORED).sum(dim=1)).sum()
    right = gradients(model, expected)
    loss = model(sound, before, targets)
    found = gradients(model, loss)
    assert notes == []
    torch.testing.assert_close(loss, expected)
    assert found.keys() == right.keys()
    for name, value in right.items():
        torch.testing.assert_close(found[name], value, msg=name, rtol=1e-4, atol=1e-6)


def recipe(tiny: Make, tmp_path: Path, *more: str) -> Recipe:
    document = {"pretrained": str(models.causal(tmp_path / "model")), "context": 32, "loss_chunk": 24}
    return tiny(f"workload.model={json.dumps(document)}", "workload.data.tokens=model", *more)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.deep
def test_compiled_blocks_and_loss_have_no_graph_break(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(wrap, "BACKEND", "aot_eager")
    given = ("steps=2", "optimizer.warmup=0", "batch.micro_batch=16", "log.every=1", f"strategy={strategy}")
    run(recipe(tiny, tmp_path, *given), tmp_path / "plain")
    torch._dynamo.reset()
    run(recipe(tiny, tmp_path, *given, "compile=true"), tmp_path / "compiled")
    (event,) = (row for row in read_rows(tmp_path / "compiled").rows if row.get("what") == "compiled")
    assert event["text"].endswith("graphs, no graph break")
    plain, compiled = (metric_values(rows_of(tmp_path / name), "loss") for name in ("plain", "compiled"))
    assert compiled == pytest.approx(plain, rel=1e-5)


@pytest.mark.deep
def test_two_ranks_have_the_losses_of_all_logits(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, values = ARCHITECTURES["gemma2, with a cap"]
    own = json.dumps({"architecture": kind, "config": values, "context": 32, "loss_chunk": 24})
    short = ("steps=4", "optimizer.warmup=0", "optimizer.lr=1e-2")
    chosen = {
        "capped": tiny(f"workload.model={own}", *short),
        "lora": recipe(tiny, tmp_path, "workload.model.lora={rank: 2}", *short),
    }
    both = {
        f"{name}-{strategy}": each.model_copy(update={"strategy": strategy})
        for name, each in chosen.items()
        for strategy in ("ddp", "fsdp")
    }
    found = train_all(both, tmp_path, cache, world_size=2)

    def unknown(*_: Any) -> Any:
        raise output_head._UnknownError("not measured")

    monkeypatch.setattr(output_head, "_measure", unknown)
    for name, each in chosen.items():
        run(each, tmp_path / name)
        for strategy in ("ddp", "fsdp"):
            agrees(found[f"{name}-{strategy}"], rows_of(tmp_path / name))


@pytest.mark.parametrize("blocks", ["LlamaDecoderLayer", "LlamaDecoderLayer, Linear"])
def test_a_head_that_is_sharded_on_its_own_is_not_used_outside_its_forward(
    tmp_path: Path, tiny: Make, run: Callable[..., RunResult], blocks: str
) -> None:
    texts: list[str] = []
    chosen = recipe(tiny, tmp_path, "steps=2", "optimizer.warmup=0", f"sharding.blocks=[{blocks}]")
    run(
        chosen.model_copy(update={"strategy": "fsdp"}),
        tmp_path / "sharded",
        on_event=lambda _, text: texts.append(text),
    )
    run(chosen, tmp_path / "whole")
    agrees(rows_of(tmp_path / "sharded"), rows_of(tmp_path / "whole"))
    noted = [text for text in texts if "logits of all tokens" in text]
    assert len(noted) == ("Linear" in blocks)
    assert all("sharding.blocks" in text for text in noted)
