"""Tiny stand-ins for a provider's SDK, as wheels in a folder: nothing is downloaded."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

SDK = """\
import pulumi
from typing import Optional


@pulumi.input_type
class BucketArgs:
    def __init__(__self__, *, {arguments}):
{setters}

{getters}

class Bucket(pulumi.CustomResource):
    def __init__(self, resource_name, opts=None, **arguments):
        args = BucketArgs(**arguments)
        wires = {wires!r}
        props = {{wires[name]: getattr(args, name) for name in wires}}
        super().__init__("aws:s3/bucket:Bucket", resource_name, props, opts)
"""


def wheel(folder: Path, version: str, inputs: dict[str, bool]) -> Path:
    """Write `pulumi-aws` of a version whose only type, a bucket, has these inputs; True: required."""
    names = {name: "".join(f"_{one.lower()}" if one.isupper() else one for one in name) for name in inputs}
    code = SDK.format(
        arguments=", ".join(
            f"{names[wire]}: pulumi.Input[str]"
            if required
            else f"{names[wire]}: Optional[pulumi.Input[str]] = None"
            for wire, required in inputs.items()
        ),
        setters="\n".join(
            f"        if {python} is not None:\n            pulumi.set(__self__, {python!r}, {python})"
            for python in names.values()
        ),
        getters="\n".join(
            f"    @property\n    @pulumi.getter(name={wire!r})\n    def {python}(self) -> Optional[pulumi.Input[str]]:\n"
            f"        return pulumi.get(self, {python!r})\n"
            for wire, python in names.items()
        ),
        wires={python: wire for wire, python in names.items()},
    )
    modules = [
        {
            "pkg": "aws",
            "mod": "s3/bucket",
            "fqn": "pulumi_aws.s3",
            "classes": {"aws:s3/bucket:Bucket": "Bucket"},
        }
    ]
    files = {
        "pulumi_aws/__init__.py": f'from . import s3\nresource_modules="""{json.dumps(modules)}"""\n',
        "pulumi_aws/pulumi-plugin.json": json.dumps({"resource": True, "name": "aws", "version": version}),
        "pulumi_aws/s3.py": code,
        f"pulumi_aws-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: pulumi-aws\nVersion: {version}\n",
        f"pulumi_aws-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"pulumi_aws-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        record = "".join(f"{name},,\n" for name in [*files, f"pulumi_aws-{version}.dist-info/RECORD"])
        archive.writestr(f"pulumi_aws-{version}.dist-info/RECORD", record)
    return path
