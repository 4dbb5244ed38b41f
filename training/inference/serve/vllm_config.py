"""`trainfleet serve --engine vllm`: the Ray Serve config of a published language model, for vLLM on GPUs.

The document deploys `ray.serve.llm:build_openai_app`. It is validated with Ray's own models, and written, not
deployed: neither vLLM nor a GPU is needed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.suggestions import did_you_mean
from trainfleet.training.stores import is_remote
from trainfleet.training.workloads import Precision

BUILDER = "ray.serve.llm:build_openai_app"
PROVENANCE, CONFIG, TOKENIZER = "provenance.json", "config.json", "tokenizer.json"
MIRRORS = ("s3://", "gs://", "abfss://", "azure://")
"""What Ray Serve LLM downloads a model from."""
DTYPES: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16"}
ARCHITECTURES = frozenset(
    {
        "CohereForCausalLM",
        "Cohere2ForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "FalconForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTJForCausalLM",
        "GPTNeoXForCausalLM",
        "GemmaForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GlmForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "NemotronForCausalLM",
        "OPTForCausalLM",
        "OlmoForCausalLM",
        "Olmo2ForCausalLM",
        "OlmoeForCausalLM",
        "PhiForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "StableLmForCausalLM",
        "Starcoder2ForCausalLM",
    }
)
"""Text generation models of transformers in vLLM's registry (vllm/model_executor/models/registry.py), as far
as older releases list them. The registry of 0.29, which Ray 2.60 requires, was not compared.
"""


@dataclass(frozen=True)
class VllmOptions:
    """How a published model is deployed.

    Attributes:
        source: where the replicas read the model; None: the folder itself.
        host: address that Ray Serve listens on.
        port: port that Ray Serve listens on.
        replicas: least number of replicas.
        max_replicas: greatest number of replicas; None: as `replicas`.
        tensor_parallel: GPUs per replica.
        accelerator: a name of `ray.util.accelerators`, such as H100; None: any GPU.
        precision: of weights and computation; None: that of the training.
    """

    source: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    max_replicas: int | None = None
    tensor_parallel: int = 1
    accelerator: str | None = None
    precision: Precision | None = None


def write_config(folder: str, options: VllmOptions, target: Path) -> dict[str, Any]:
    """Write the Ray Serve config of a published folder as YAML; returns the document.

    Raises:
        InputError: the folder is not that of a published language model which vLLM serves, an option does
            not fit it, or Ray does not accept the document. Nothing is written.
    """
    import yaml

    document = serve_config(folder, options)
    write_whole(target, yaml.safe_dump(document, sort_keys=False))
    return document


def serve_config(folder: str, options: VllmOptions) -> dict[str, Any]:
    """The validated Ray Serve config of a published folder.

    Raises:
        InputError: as in `write_config`.
    """
    if is_remote(folder):
        fix = "name the folder on this machine, and its URL with --model-source"
        raise InputError("the published folder is not on this machine", [Problem(folder, "is a URL", fix)])
    path = Path(folder.removeprefix("file://")).absolute()
    provenance = _document(path / PROVENANCE, "not a published model", "trainfleet publish RUN --to FOLDER")
    config = _document(
        path / CONFIG, "not in Hugging Face layout", "vLLM serves published language models only"
    )
    recipe = provenance.get("recipe")
    if not isinstance(recipe, dict):
        problem = Problem(str(path / PROVENANCE), "has no recipe", "publish the run again")
        raise InputError("not a published model", [problem])
    _require_architecture(path, config)
    _require_files(path)
    _require_fit(path, config, options)
    most = options.replicas if options.max_replicas is None else options.max_replicas
    llm: dict[str, Any] = {
        "model_loading_config": {"model_id": recipe["name"], "model_source": options.source or str(path)},
        "engine_kwargs": {
            "dtype": DTYPES[options.precision or recipe["precision"]],
            "max_model_len": _number(config, "max_position_embeddings", "n_positions"),
            "tensor_parallel_size": options.tensor_parallel,
        },
        "deployment_config": {"autoscaling_config": {"min_replicas": options.replicas, "max_replicas": most}},
    }
    if options.accelerator is not None:
        llm["accelerator_type"] = options.accelerator
    document = {
        "http_options": {"host": options.host, "port": options.port},
        "applications": [
            {
                "name": recipe["name"],
                "route_prefix": "/",
                "import_path": BUILDER,
                "args": {"llm_configs": [llm]},
            }
        ],
    }
    validate(document)
    return document


def validate(document: Mapping[str, Any]) -> None:
    """Validate a Ray Serve config and its LLM configs with the installed Ray.

    `engine_kwargs` are vLLM's own and not validated.

    Raises:
        InputError: every field that Ray does not accept.
    """
    from pydantic import ValidationError

    # NOTE: the public `ray.serve.llm.LLMConfig` is a subclass without fields of its own, but its module
    # requires vLLM. Ray is pinned to one minor version.
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
    from ray.serve.schema import ServeDeploySchema

    problems = []
    try:
        ServeDeploySchema.model_validate(document)
    except ValidationError as error:
        problems += [_problem("", each) for each in error.errors()]
    for number, llm in enumerate(document["applications"][0]["args"]["llm_configs"]):
        try:
            LLMConfig.model_validate(llm)
        except ValidationError as error:
            where = f"applications.0.args.llm_configs.{number}."
            problems += [_problem(where, each) for each in error.errors()]
    if problems:
        raise InputError("Ray does not accept this Ray Serve config", problems)


def _problem(prefix: str, error: Mapping[str, Any]) -> Problem:
    return Problem(prefix + ".".join(str(each) for each in error["loc"]), str(error["msg"]))


def _document(path: Path, summary: str, fix: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("is not a JSON object")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise InputError(summary, [Problem(str(path), what, fix)]) from error
    return document


def _require_architecture(folder: Path, config: Mapping[str, Any]) -> None:
    names = config.get("architectures") or [config.get("model_type")]
    unknown = [str(each) for each in names if each not in ARCHITECTURES]
    if not unknown:
        return
    fix = "serve it without --engine vllm"
    if config.get("model_type") == "trainfleet-gpt":
        fix += ", or train with workload.model.mlp=swiglu, which is published as a Qwen3"
    what = f"`{', '.join(unknown)}` is not a language model that vLLM is known to serve"
    raise InputError("vLLM does not serve this model", [Problem(str(folder / CONFIG), what, fix)])


def _require_files(folder: Path) -> None:
    """Require weights and a tokenizer, which vLLM reads from the folder."""
    problems = []
    if not any(folder.glob("*.safetensors")):
        problems.append(Problem(str(folder), "has no *.safetensors", "copy the whole published folder"))
    if not (folder / TOKENIZER).is_file():
        problems.append(Problem(str(folder / TOKENIZER), "does not exist", "copy the whole published folder"))
    if problems:
        raise InputError("the published model is not complete", problems)


def _require_fit(folder: Path, config: Mapping[str, Any], options: VllmOptions) -> None:
    """Require options that fit each other and the model; all mistakes at once."""
    from ray.util import accelerators

    problems = []
    if _number(config, "max_position_embeddings", "n_positions") is None:
        problems.append(Problem(str(folder / CONFIG), "has no `max_position_embeddings`"))
    heads = _number(config, "num_attention_heads", "n_head")
    if heads is None:
        problems.append(Problem(str(folder / CONFIG), "has no `num_attention_heads`"))
    elif heads % options.tensor_parallel:
        what = f"{options.tensor_parallel} GPUs cannot share {heads} attention heads equally"
        problems.append(Problem("--tensor-parallel", what, f"use a divisor of {heads}"))
    if options.max_replicas is not None and options.max_replicas < options.replicas:
        what = f"{options.max_replicas} is less than --replicas {options.replicas}"
        problems.append(Problem("--max-replicas", what, "use at least as many"))
    known = [value for name, value in vars(accelerators).items() if name.isupper() and isinstance(value, str)]
    if options.accelerator is not None and options.accelerator not in known:
        what = f"`{options.accelerator}` is not a type that Ray knows"
        problems.append(Problem("--accelerator-type", what, did_you_mean(options.accelerator, known)))
    source = options.source
    if source is not None and not source.startswith(("/", *MIRRORS)):
        what = f"`{source}` is not what Ray Serve LLM reads"
        problems.append(
            Problem("--model-source", what, f"use an absolute path, or a URL of {', '.join(MIRRORS)}")
        )
    if problems:
        raise InputError("cannot write the Ray Serve config", problems)


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these keys that is a positive integer."""
    return next(
        (config[name] for name in names if isinstance(config.get(name), int) and config[name] > 0), None
    )
