"""Converts the GPT to and from Hugging Face's layout, for `AutoModelForCausalLM` and `AutoTokenizer`.

With SwiGLU the model is a Qwen3: rotary positions, RMSNorm, queries and keys normalised per head (gains of
one), tied head. With GELU it matches no transformers model and keeps its own layout; `read_gpt` loads both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.lm.gpt import ROTARY_BASE, Gpt
from trainfleet.training.workloads.lm.hf_tokenizer import byte_of
from trainfleet.training.workloads.lm.settings import GptSettings
from trainfleet.training.workloads.model_folder import (
    CONFIG,
    WEIGHTS,
    need_transformers,
    read_config,
    read_weights,
    write_model,
)

KIND = "trainfleet-gpt"
EPSILON = float(torch.finfo(torch.float32).eps)
"""Default epsilon of torch's RMSNorm."""


def write_gpt(model: Gpt, folder: Path, tokenizer: bytes | None, end: int, end_text: str | None) -> None:
    """Write weights, configuration and tokenizer; `tokenizer` None means bytes.

    Raises:
        InputError: transformers is not installed.
    """
    settings, vocabulary = model.settings, model.embedding.num_embeddings
    notes = {"settings": settings.model_dump(mode="json"), "vocabulary": vocabulary}
    if settings.mlp != "swiglu":
        write_model(folder, KIND, model, notes)
    else:
        tools = need_transformers("export")
        config = tools.Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=settings.width,
            intermediate_size=model.blocks[0].mlp.down.in_features,  # type: ignore[union-attr]  # ModuleList is not generic
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            head_dim=settings.width // settings.heads,
            max_position_embeddings=settings.context,
            rms_norm_eps=EPSILON,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
        )
        config.trainfleet = notes
        with torch.device("meta"):
            other = tools.Qwen3ForCausalLM(config)
        other.load_state_dict(as_qwen3(model.state_dict(), settings), assign=True, strict=False)
        other.tie_weights()
        other.save_pretrained(folder)
    write_tokenizer(folder, tokenizer, end_text)


def read_gpt(folder: Path, dtype: torch.dtype = torch.float32) -> Gpt:
    """The GPT that `write_gpt` wrote, with weights of this type.

    Raises:
        InputError: there is none, or another model.
    """
    try:
        document: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "no exported model found",
            [Problem(str(folder / CONFIG), str(error), "use a folder of an export")],
        ) from error
    if document.get("model_type") == KIND:
        config = read_config(folder, KIND)
        settings = GptSettings.model_validate(config["settings"])
        model = read_weights(folder, _on_meta(settings, config["vocabulary"]), dtype)
        assert isinstance(model, Gpt)
        return model
    if "trainfleet" not in document:
        fix = "workload.model.pretrained reads others"
        raise InputError(
            "another model",
            [
                Problem(
                    str(folder), f"holds a `{document.get('model_type')}` that Trainfleet did not write", fix
                )
            ],
        )
    from safetensors import safe_open

    settings = GptSettings.model_validate(document["trainfleet"]["settings"])
    gpt = _on_meta(settings, document["trainfleet"]["vocabulary"])
    with safe_open(str(folder / WEIGHTS), framework="pt") as file:
        # The file is mapped into memory, so only what is converted or joined is copied.
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    gpt.load_state_dict(from_qwen3(state, settings, dtype), assign=True)
    return gpt.eval()


def _on_meta(settings: GptSettings, vocabulary: int) -> Gpt:
    with torch.device("meta"):
        return Gpt(settings, vocabulary)


def as_qwen3(state: dict[str, Tensor], settings: GptSettings) -> dict[str, Tensor]:
    """The weights under Qwen3's names."""
    out = {"model.embed_tokens.weight": state["embedding.weight"], "model.norm.weight": state["norm.weight"]}
    ones = torch.ones(settings.width // settings.heads)
    for number in range(settings.layers):
        mine, theirs = f"blocks.{number}", f"model.layers.{number}"
        for name, part in zip("qkv", state[f"{mine}.attention.qkv.weight"].chunk(3), strict=True):
            out[f"{theirs}.self_attn.{name}_proj.weight"] = part.contiguous()
        gate, value = state[f"{mine}.mlp.up.weight"].chunk(2)
        out |= {
            f"{theirs}.self_attn.o_proj.weight": state[f"{mine}.attention.out.weight"],
            f"{theirs}.self_attn.q_norm.weight": ones.clone(),
            f"{theirs}.self_attn.k_norm.weight": ones.clone(),
            f"{theirs}.input_layernorm.weight": state[f"{mine}.attention_norm.weight"],
            f"{theirs}.post_attention_layernorm.weight": state[f"{mine}.mlp_norm.weight"],
            f"{theirs}.mlp.gate_proj.weight": gate.contiguous(),
            f"{theirs}.mlp.up_proj.weight": value.contiguous(),
            f"{theirs}.mlp.down_proj.weight": state[f"{mine}.mlp.down.weight"],
        }
    return out


def from_qwen3(
    state: dict[str, Tensor], settings: GptSettings, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Inverse of `as_qwen3`, with weights of this type."""

    def joined(*names: str) -> Tensor:
        parts = [state[name] for name in names]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).to(dtype)

    out = {
        "embedding.weight": joined("model.embed_tokens.weight"),
        "norm.weight": joined("model.norm.weight"),
    }
    for number in range(settings.layers):
        mine, theirs = f"blocks.{number}", f"model.layers.{number}"
        out |= {
            f"{mine}.attention.qkv.weight": joined(
                *(f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv")
            ),
            f"{mine}.attention.out.weight": joined(f"{theirs}.self_attn.o_proj.weight"),
            f"{mine}.attention_norm.weight": joined(f"{theirs}.input_layernorm.weight"),
            f"{mine}.mlp_norm.weight": joined(f"{theirs}.post_attention_layernorm.weight"),
            f"{mine}.mlp.up.weight": joined(*(f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up"))),
            f"{mine}.mlp.down.weight": joined(f"{theirs}.mlp.down_proj.weight"),
        }
    return out


def write_tokenizer(folder: Path, tokenizer: bytes | None, end_text: str | None) -> None:
    """Write tokenizer.json and its configuration; with `tokenizer` None each byte is a token.

    Raises:
        InputError: transformers is not installed.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if tokenizer is None:
        made = Tokenizer(models.BPE(vocab=byte_of(), merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
    else:
        made = Tokenizer.from_str(tokenizer.decode())
    named = {"eos_token": end_text} if end_text else {}
    need_transformers("export").PreTrainedTokenizerFast(tokenizer_object=made, **named).save_pretrained(
        folder
    )
