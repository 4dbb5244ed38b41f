"""The package `cloudinit`: the real MIME document of the given parts."""

from __future__ import annotations

import base64
import gzip
from typing import Any

from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel
from trainfleet.rehearsal.simulation.values import digest

_TOKEN = "cloudinit:index/getConfig:getConfig"


class CloudInitModel(ComputedModel):
    """`Config` and `get_config`."""

    replaced_by_any_change = True
    source = "terraform-provider-cloudinit internal/provider/cloudinit_config.go"
    answers = {
        _TOKEN: lambda args, _: {
            "gzip": True,
            "base64Encode": True,
            **args,
            "rendered": rendered(args),
            "id": digest(rendered(args))[:10],
        }
    }

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:  # noqa: ARG002 - shared signature
        return {"rendered": rendered(inputs)}


def rendered(inputs: dict[str, Any]) -> str:
    """Return the document; base64 text if the inputs ask for it, which is the default."""
    boundary = inputs.get("boundary") or "MIMEBOUNDARY"
    text = f'Content-Type: multipart/mixed; boundary="{boundary}"\nMIME-Version: 1.0\r\n\r\n'
    for part in inputs.get("parts") or ():
        headers = {
            "Content-Transfer-Encoding": "7bit",
            "Content-Type": part.get("contentType") or "text/plain",
            "Mime-Version": "1.0",
            "Content-Disposition": part.get("filename") and f'attachment; filename="{part["filename"]}"',
            "X-Merge-Type": part.get("mergeType"),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        text += f"--{boundary}\r\n{lines}\r\n{part.get('content', '')}\r\n"
    text += f"--{boundary}--\r\n"
    zipped = inputs.get("gzip") in (None, True, "true")
    if not zipped and inputs.get("base64Encode") in (False, "false"):
        return text
    return base64.b64encode(gzip.compress(text.encode(), mtime=0) if zipped else text.encode()).decode()
