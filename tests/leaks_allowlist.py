"""What a test session may leave behind, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

PROCESS, TEMPORARY, CHECKOUT, HOME = (
    "process",
    "temporary file",
    "file in the checkout",
    "file in the home directory",
)
MOUNT, INTERFACE, NAMESPACE, CLUSTER = "mount", "network interface", "network namespace", "cluster"


@dataclass(frozen=True)
class Allowed:
    """What may remain (a glob over the whole name), and why."""

    glob: str
    reason: str


_EDITED = "developers write it while tests run"
_CACHE = "a cache that tools keep between sessions, ignored by git"
_XDG = "a base folder of the XDG specification; what Trainfleet keeps below it is compared"
_DRIVER = "a compiler's cache, kept for the next run"
_OTHERS = "made by other software on this machine, at any time"
ALLOWED: Mapping[str, tuple[Allowed, ...]] = {
    PROCESS: (
        Allowed(
            "*multiprocessing.resource_tracker*", "Python's own; it ends with the process that started it"
        ),
    ),
    TEMPORARY: (
        Allowed("pymp-*", "Python's multiprocessing removes it when the process that made it ends"),
        Allowed(
            "tf-*-keys-*", "key files of Kubernetes' client, removed when the process that made them ends"
        ),
        Allowed("ray", "Ray's folder of sessions on a host, which Ray never removes"),
        *(
            Allowed(f"ray-{name}-*", "what `ray up` keeps of its configuration, also if it is interrupted")
            for name in ("bootstrap", "config")
        ),
        *(
            Allowed(name, "buildah's and podman's folder for a user without XDG_RUNTIME_DIR")
            for name in ("containers-user-*", "podman-run-*")
        ),
        Allowed("torchelastic_*", "torchrun's folder for logs, which torch never removes"),
        Allowed("pytorch-errorfile-*", "torch's file for an error of a rank, left if the rank is killed"),
        *(
            Allowed(name, "Weights & Biases removes it at exit, so not in a process that is killed")
            for name in ("*wandb-artifacts", "*wandb-media")
        ),
        *(
            Allowed(name, "sockets of Weights & Biases' service, which it never removes")
            for name in ("wandb-[0-9]*-[0-9]*-[0-9]*", "wandb_xpu-[0-9]*.sock")
        ),
        Allowed("torchinductor_*", "torch's cache of compiled kernels"),
    ),
    CHECKOUT: (
        *(Allowed(f"*{suffix}", _EDITED) for suffix in (".py", ".md", ".swp", "~")),
        *(Allowed(f"{name}/*", _CACHE) for name in (".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache")),
        *(Allowed(f"{name}/*", _CACHE) for name in (".hypothesis", ".import_linter_cache")),
        *(Allowed(name, _CACHE) for name in ("*__pycache__/*", "*.egg-info/*", ".setup.lock")),
        Allowed("runs/*", "the folder of a user's runs, ignored by git"),
    ),
    HOME: (
        *(Allowed(name, _XDG) for name in (".cache", ".config", ".local")),
        *(Allowed(name, _DRIVER) for name in (".nv", ".triton")),
        *(
            Allowed(name, "SkyPilot makes it when it is imported")
            for name in (".sky", ".sky/locks", ".sky/serve", ".sky/user_hash")
        ),
        *(
            Allowed(name, _OTHERS)
            for name in (".*_history", ".lesshst", ".viminfo", ".Xauthority", ".kube", ".kube/cache")
        ),
    ),
    MOUNT: tuple(
        Allowed(f"{folder}/*", _OTHERS)
        for folder in (
            "/media",
            "/run/media",
            "/run/user",
            "/run/credentials",
            "/run/docker",
            "/snap",
            "/var/lib/docker",
        )
    ),
    INTERFACE: tuple(
        Allowed(f"{name}*", _OTHERS)
        for name in ("docker", "br-", "veth", "virbr", "vnet", "tun", "wg", "utun")
    ),
    NAMESPACE: (),
    CLUSTER: (),
}


def allowed(kind: str, name: str) -> bool:
    """Whether the allowlist has it; a folder is given with or without its slash."""
    return any(fnmatchcase(name, each.glob) or fnmatchcase(f"{name}/", each.glob) for each in ALLOWED[kind])
