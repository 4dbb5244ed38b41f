"""What each command needs of the machine: packages, programs and resources; `trainfleet doctor` checks it."""

from __future__ import annotations

from typing import NamedTuple

CLOUD = "cloud"
"""Requirement that is met by the packages of at least one cloud (`cloud-aws`, `cloud-gcp`, ...)."""


class Needs(NamedTuple):
    """The checks that a command depends on, by `Check.key`; it works without the optional ones."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


_ENGINE = (CLOUD, "engine")
_MACHINE = ("cpus", "memory", "shared-memory", "run-disk", "gpu")
_TRACKERS = ("extra-mlflow", "extra-wandb")
_MODELS = ("extra-hf", "extra-speech", "extra-vision")
_TRAINING = (*_MODELS, "extra-float8", *_TRACKERS, *_MACHINE)
_LAUNCHERS = ("extra-kuberay", "extra-sky", "extra-ray-up")
_CLOUD_TOOLS = ("aws", "gke-gcloud-auth-plugin", "kubelogin")
_REGISTRY_LOGINS = ("aws", "gcloud", "az")

NEEDS: dict[str, Needs] = {
    "init": Needs((), ("git",)),
    "spec": Needs(),
    "machines": Needs(),
    "preflight": Needs((), (CLOUD,)),
    "rehearse": Needs(_ENGINE, ("engine-disk", "knowledge", "kubectl", "helm")),
    "diff": Needs((*_ENGINE, "git"), ("engine-disk", "knowledge")),
    "drift": Needs((), (CLOUD, "engine", "knowledge")),
    "ci": Needs((), ("engine", "extra-train")),
    "cost": Needs((), (CLOUD, "engine", "extra-train")),
    "knowledge": Needs((), (CLOUD, "knowledge")),
    "kubeconfig": Needs((), ("extra-kuberay", *_CLOUD_TOOLS)),
    "data": Needs(("extra-train",), (*_MODELS, "run-disk")),
    "train": Needs(("extra-train",), _TRAINING),
    "launch": Needs(("extra-train",), (*_TRAINING, *_LAUNCHERS, *_CLOUD_TOOLS)),
    "plan": Needs(),
    "sky": Needs(("extra-sky", "kubectl", "socat", "nc", "rsync", "ssh"), _CLOUD_TOOLS),
    "fabric": Needs(("extra-kuberay",), _CLOUD_TOOLS),
    "runs": Needs((), ("extra-kuberay", *_CLOUD_TOOLS)),
    "dashboard": Needs(("extra-kuberay",), _CLOUD_TOOLS),
    "tune": Needs(("extra-train", "extra-tune"), (*_TRAINING, *_LAUNCHERS, *_CLOUD_TOOLS)),
    "ui": Needs(("extra-ui",), ("extra-kuberay", *_CLOUD_TOOLS)),
    "evaluate": Needs(("extra-train",), (*_MODELS, *_MACHINE, *_LAUNCHERS, *_CLOUD_TOOLS)),
    "publish": Needs(("extra-train",), _MODELS),
    "predict": Needs(("extra-train",), (*_MODELS, *_MACHINE, *_LAUNCHERS, *_CLOUD_TOOLS)),
    "serve": Needs(("extra-train",), (*_MODELS, *_MACHINE)),
    "report": Needs(("extra-train",)),
    "image": Needs((), ("buildah", "podman", "docker", *_REGISTRY_LOGINS)),
    "cluster": Needs(("local-cluster",), ("engine-disk",)),
    "notify": Needs(),
    "policies": Needs(),
    "doctor": Needs(),
}
"""What each command depends on besides Python. A command that is not listed depends on nothing else."""


def needs_of(command: str) -> Needs:
    """Return what a command depends on."""
    return NEEDS.get(command, Needs())
