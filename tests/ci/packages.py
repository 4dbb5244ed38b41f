"""A local package index, a Git repository from which Trainfleet is installed, and an environment of its own in which a
job may install: that of the tests stays as it is.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.ci.forge import git
from tests.ci.runner import ROOT
from trainfleet import __version__

NAME = "acme-models"
SOURCE = "https://git.test/trainfleet.git"
BACKEND = '''"""Builds the wheel: pip can install no build tool without a network."""

import pathlib
import zipfile

INFO = "trainfleet-VERSION.dist-info"


def build_wheel(folder, config_settings=None, metadata_directory=None):
    version = pathlib.Path("VERSION").read_text()
    info, name = INFO.replace("VERSION", version), f"trainfleet-{version}-py3-none-any.whl"
    files = {
        "METADATA": f"Metadata-Version: 2.1\\nName: trainfleet\\nVersion: {version}\\n"
        + "".join(f"Provides-Extra: {extra}\\n" for extra in ("aws", "train", "kuberay")),
        "WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        for file in sorted(pathlib.Path("trainfleet").rglob("*")):
            wheel.write(file)
        for file, text in files.items():
            wheel.writestr(f"{info}/{file}", text)
    return name
'''


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


class Source:
    """A Git repository with Trainfleet as it is here, from which pip installs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        package = folder / "trainfleet"
        shutil.copytree(ROOT / "trainfleet", package, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "backend.py").write_text(BACKEND)
        settings = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        (folder / "pyproject.toml").write_text(settings)
        git(folder, "init", "--quiet", "--initial-branch", "main")
        self.release(__version__, {})

    def release(self, version: str, changes: Mapping[str, tuple[str, str]]) -> None:
        """Commit a version; `changes` name files of the package, and a text with what replaces it."""
        for name, (old, new) in {**changes, "__init__.py": (f'"{self.version}"', f'"{version}"')}.items():
            file = self.folder / "trainfleet" / name
            assert old in file.read_text(), f"{name} has no {old}"
            file.write_text(file.read_text().replace(old, new))
        (self.folder / "VERSION").write_text(version)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--message", version)

    @property
    def version(self) -> str:
        """The version of the package here."""
        file = self.folder / "VERSION"
        return file.read_text() if file.exists() else __version__

    @property
    def requirement(self) -> str:
        """What `trainfleet init` of an installation from this commit writes after the extras."""
        return f" @ git+{SOURCE}@{git(self.folder, 'rev-parse', 'HEAD')}"

    @property
    def settings(self) -> dict[str, str]:
        """What makes Git fetch from here."""
        key = f"url.file://{self.folder}.insteadOf"
        return {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": key, "GIT_CONFIG_VALUE_0": SOURCE}

    def install(self, python: Path) -> None:
        """Install the commit into an environment."""
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-index", f"trainfleet{self.requirement}"],
            env=os.environ | self.settings,
            check=True,
        )
