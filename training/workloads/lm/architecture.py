"""Causal architectures of transformers with random weights: their configuration, from a recipe's values."""

from __future__ import annotations

from typing import Any

import torch

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.workloads.lm.settings import GptSettings
from trainfleet.training.workloads.model_folder import need_transformers

KEY = "workload.model.architecture"
CONFIG = "workload.model.config"
_GIVEN = ("model_type", "architectures", "transformers_version", "dtype", "torch_dtype")
"""Keys of a configuration that describe a stored model."""


def build_architecture(
    settings: GptSettings, vocabulary: int, end: int, dtype: torch.dtype = torch.float32
) -> Any:
    """A causal model of transformers whose weights are drawn with torch's global random generator.

    Args:
        settings: the architecture, its configuration and the context.
        vocabulary: number of tokens.
        end: the token after each document.
        dtype: type of the weights.

    Raises:
        InputError: there is no such architecture, it has no such value, or it cannot be built with them.
    """
    config = architecture_config(settings, vocabulary, end)
    try:
        return need_transformers(KEY).AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # whatever a model's constructor raises: the values are the user's
        raise _not_built(settings, error) from error


def architecture_config(settings: GptSettings, vocabulary: int, end: int) -> Any:
    """The configuration: the recipe's values, and of the others the vocabulary, the end token and the
    positions that the data needs.

    Raises:
        InputError: there is no such architecture, or it has no such value.
    """
    name = settings.architecture
    assert name is not None
    tools = need_transformers(f"{KEY} {name}")
    known = tools.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if name not in known:
        what = f"`{name}` is not a causal language model of transformers {tools.__version__}"
        raise InputError("no such architecture", [Problem(KEY, what, did_you_mean(name, known))])
    kind = tools.models.auto.configuration_auto.CONFIG_MAPPING[name]
    names = ({*kind().to_dict(), *kind.attribute_map} | {"vocab_size"}) - set(_GIVEN)
    problems = [
        Problem(f"{CONFIG}.{key}", f"is not a value of {kind.__name__}", did_you_mean(key, names))
        for key in settings.config
        if key not in names
    ]
    values = {kind.attribute_map.get(key, key): value for key, value in settings.config.items()}
    for key, least, why in (
        ("vocab_size", vocabulary, "tokens of the data"),
        ("max_position_embeddings", settings.context, "tokens of workload.model.context"),
    ):
        own = kind.attribute_map.get(key, key)
        value = values.setdefault(own, least) if own in names else least
        if not isinstance(value, int) or value < least:
            problems.append(Problem(f"{CONFIG}.{own}", f"is {value}, for {least} {why}", f"{least} or more"))
    if problems:
        raise InputError("the architecture does not have this configuration", problems)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    try:
        return kind(**{**ends, **values})
    except Exception as error:  # each architecture checks its values in its own way
        raise _not_built(settings, error) from error


def _not_built(settings: GptSettings, error: Exception) -> InputError:
    lines = str(error).splitlines() or [type(error).__name__]
    what = f"{settings.architecture} cannot be built: {' '.join(line.strip() for line in lines)[:300]}"
    return InputError("the architecture does not have this configuration", [Problem(CONFIG, what)])
