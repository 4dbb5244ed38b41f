"""Writes an image as an OCI archive for `ctr images import`, from layers that are tar files.

The archive may omit blobs that the store has already, so a changed top layer is imported in a second. Layers
are never compressed: a layer's `diff_id`, the digest of the uncompressed tar, equals the digest of its blob.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """A layer: its digest and size, and its file unless the store has the blob."""

    digest: str
    size: int
    file: Path | None = None


@dataclass(frozen=True)
class Settings:
    """How a container of the image starts."""

    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = "/"
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "User": self.user,
            "WorkingDir": self.folder,
            "Entrypoint": list(self.entrypoint) or None,
            "Cmd": list(self.command) or None,
            "Labels": dict(self.labels),
        }


def layer(file: Path) -> Layer:
    """The layer of a tar file."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Layer(f"sha256:{digest}", file.stat().st_size, file)


def write(archive: Path, reference: str, layers: Sequence[Layer], settings: Settings) -> None:
    """Write the archive of one image under a reference, e.g. `localhost/trainfleet:local`."""
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": settings.as_json(),
        "rootfs": {"type": "layers", "diff_ids": [each.digest for each in layers]},
        "history": [{"created_by": "trainfleet cluster"} for _ in layers],
    }
    with tarfile.open(archive, "w") as tar:
        config_blob = _blob(tar, f"{_TYPE}.config.v1+json", config)
        rows = [
            {"mediaType": f"{_TYPE}.layer.v1.tar", "digest": each.digest, "size": each.size}
            for each in layers
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": config_blob,
            "layers": rows,
        }
        manifest_blob = _blob(tar, f"{_TYPE}.manifest.v1+json", manifest)
        manifest_blob["annotations"] = {
            "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": reference.rsplit(":", 1)[-1],
        }
        for each in layers:
            if each.file is not None:
                tar.add(each.file, _path(each.digest), recursive=False)
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest_blob]}).encode())


def _blob(tar: tarfile.TarFile, kind: str, document: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(document).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _add(tar, _path(digest), data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
