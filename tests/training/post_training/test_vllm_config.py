"""`serve --engine vllm`: the Ray Serve config of a published folder, which Ray's own models accept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ray.serve.schema import ServeDeploySchema
from typer.testing import CliRunner

from tests.training.workloads import models
from trainfleet.errors import InputError
from trainfleet.training.cli.serve import serve
from trainfleet.training.cli.serve_options import OWN_ENGINE_ONLY, VLLM_ONLY
from trainfleet.training.inference.serve.vllm_config import VllmOptions, serve_config, validate, write_config
from trainfleet.training.publish.export import publish
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.gpt_hf_layout import write_gpt
from trainfleet.training.workloads.lm.settings import GptSettings
from trainfleet.training.workloads.model_folder import write_model


def gpt(folder: Path, mlp: str = "swiglu") -> None:
    settings = GptSettings.model_validate({"width": 32, "layers": 1, "heads": 4, "context": 48, "mlp": mlp})
    write_gpt(Gpt(settings, 257), folder, None, 256, None)


def image_classifier(folder: Path) -> None:
    write_model(folder, "trainfleet-vision", torch.nn.Linear(2, 2), {"settings": {}})


def described(folder: Path, make: Callable[[Path], Any], recipe: str = "lm-tiny") -> Path:
    """A folder with a model and the parts of provenance.json that are read."""
    folder.mkdir(parents=True, exist_ok=True)
    make(folder)
    document = {"recipe": load_recipe(recipe).model_dump(mode="json")}
    (folder / "provenance.json").write_text(json.dumps(document))
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return described(tmp_path / "llama", models.causal)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        serve_config(str(folder), VllmOptions(**options))
    return str(caught.value)


def test_a_published_run_becomes_a_config_that_ray_reads_back(run_dir: Path, tmp_path: Path) -> None:
    gates = load_recipe("lm-tiny", ["publish={gates: {validation/loss: {max: 1000}}, require_test: false}"])
    folder = publish(str(run_dir), tmp_path / "published", recipe=gates).folder
    target = tmp_path / "serve.yaml"
    write_config(str(folder), VllmOptions(accelerator="H100", replicas=2, max_replicas=4), target)
    read = ServeDeploySchema.model_validate(yaml.safe_load(target.read_text()))
    (application,) = read.applications
    assert application.import_path == "ray.serve.llm:build_openai_app"
    assert read.http_options.host == "127.0.0.1"
    config = json.loads((folder / "config.json").read_text())
    assert application.args["llm_configs"] == [
        {
            "model_loading_config": {"model_id": "lm-tiny", "model_source": str(folder)},
            "engine_kwargs": {
                "dtype": "float32",
                "max_model_len": config["trainfleet"]["settings"]["context"],
                "tensor_parallel_size": 1,
            },
            "deployment_config": {"autoscaling_config": {"min_replicas": 2, "max_replicas": 4}},
            "accelerator_type": "H100",
        }
    ]


def test_the_options_reach_the_config(llama: Path) -> None:
    options = VllmOptions(
        source="s3://models/llama", host="0.0.0.0", port=9000, tensor_parallel=2, precision="bf16"
    )
    document = serve_config(str(llama), options)
    (llm,) = document["applications"][0]["args"]["llm_configs"]
    assert document["http_options"] == {"host": "0.0.0.0", "port": 9000}
    assert llm["model_loading_config"]["model_source"] == "s3://models/llama"
    assert llm["engine_kwargs"] == {"dtype": "bfloat16", "max_model_len": 64, "tensor_parallel_size": 2}
    assert llm["deployment_config"]["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 1}
    assert "accelerator_type" not in llm


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda folder: gpt(folder, "gelu"), "trainfleet-gpt", "workload.model.mlp=swiglu"),
        (image_classifier, "trainfleet-vision", "serve it without --engine vllm"),
        (models.whisper, "WhisperForConditionalGeneration", "serve it without --engine vllm"),
        (models.wav2vec2, "Wav2Vec2ForCTC", "serve it without --engine vllm"),
    ],
)
def test_a_model_that_vllm_does_not_serve_is_refused_by_name(
    make: Callable[[Path], Any], name: str, words: str, tmp_path: Path
) -> None:
    text = refusal(described(tmp_path / "model", make))
    assert f"`{name}`" in text
    assert words in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel": 3}, "3 GPUs cannot share 2 attention heads"),
        ({"replicas": 3, "max_replicas": 2}, "2 is less than --replicas 3"),
        ({"accelerator": "H10"}, "did you mean `H100`?"),
        ({"source": "models/llama"}, "use an absolute path"),
        ({"source": "az://models/llama"}, "abfss://"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(options: dict[str, Any], words: str, llama: Path) -> None:
    assert words in refusal(llama, **options)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("provenance.json", "not a published model"),
        ("config.json", "not in Hugging Face layout"),
        ("tokenizer.json", "is not complete"),
        ("model.safetensors", "has no *.safetensors"),
    ],
)
def test_a_folder_without_one_of_its_files_is_refused(missing: str, words: str, llama: Path) -> None:
    (llama / missing).unlink()
    assert words in refusal(llama)


def test_a_url_is_refused_as_the_folder() -> None:
    with pytest.raises(InputError, match="--model-source"):
        serve_config("s3://models/llama", VllmOptions())


def test_fields_that_ray_does_not_know_are_refused_with_their_place(llama: Path) -> None:
    document = serve_config(str(llama), VllmOptions())
    llm = document["applications"][0]["args"]["llm_configs"][0]
    llm["acelerator_type"] = "H100"
    llm["deployment_config"] = {"autoscaling_config": {"min_replicas": 3, "max_replicas": 2}}
    document["applications"][0]["import_path"] = "no path"
    with pytest.raises(InputError) as caught:
        validate(document)
    places = [each.where for each in caught.value.problems]
    inside = "applications.0.args.llm_configs.0"
    assert places == [
        "applications.0.import_path",
        f"{inside}.deployment_config",
        f"{inside}.acelerator_type",
    ]


VALUES = {"which": "newest", "on": "kuberay", "gcs_fault_tolerance": "always", "accelerator_type": "H100"}
FLAGS = {"show"}


def given(parameter: str, flag: str) -> list[str]:
    return [flag] if parameter in FLAGS else [flag, VALUES.get(parameter, "2")]


@pytest.mark.parametrize(
    ("engine", "parameter", "flag"),
    [("vllm", *each) for each in OWN_ENGINE_ONLY.items()]
    + [("trainfleet", *each) for each in VLLM_ONLY.items()],
)
def test_an_option_of_the_other_engine_is_refused_by_name(engine: str, parameter: str, flag: str) -> None:
    found = CliRunner().invoke(serve, ["models/none", "--engine", engine, *given(parameter, flag)])
    assert isinstance(found.exception, InputError)
    assert f"`{flag}` does nothing with --engine {engine}" in str(found.exception)


def test_the_command_writes_the_file_and_nothing_if_it_refuses(llama: Path, tmp_path: Path) -> None:
    target = tmp_path / "serve.yaml"
    command = [str(llama), "--engine", "vllm", "--write", str(target), "--tensor-parallel"]
    assert isinstance(CliRunner().invoke(serve, [*command, "5"]).exception, InputError)
    assert not target.exists()
    found = CliRunner().invoke(serve, [*command, "2", "--json"])
    assert found.exception is None
    assert json.loads(found.stdout) == {
        "written": str(target),
        "config": yaml.safe_load(target.read_text()),
    }
    unwritten = CliRunner().invoke(serve, [str(llama), "--engine", "vllm"])
    assert "--write" in str(unwritten.exception)
