"""A local package index, and an environment of its own in which a job may install: that of the tests stays as it is."""

from __future__ import annotations

import base64
import hashlib
import shutil
import sysconfig
import venv
import zipfile
from pathlib import Path

NAME = "acme-models"


def add_wheel(index: Path, version: str) -> None:
    """Publish a version of a package of the adopter."""
    index.mkdir(exist_ok=True)
    info = f"acme_models-{version}.dist-info"
    files = {
        "acme_models.py": f'VERSION = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(index / f"acme_models-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{name},sha256={digest},{len(text)}\n"
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


def environment(folder: Path) -> Path:
    """Create an environment that sees the packages of this one; return its interpreter."""
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for old in [
        each for name in ("setuptools*", "pkg_resources", "_distutils_hack") for each in site.glob(name)
    ]:
        shutil.rmtree(old)  # of venv's own version; the packages of this environment require a newer one
    (site / "distutils-precedence.pth").unlink(missing_ok=True)
    seen = sysconfig.get_path("purelib")
    (site / "of_the_tests.pth").write_text(f"import site; site.addsitedir({seen!r})\n")
    return folder / "bin" / "python"


def settings(index: Path) -> dict[str, str]:
    """What makes pip install from the index alone."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
