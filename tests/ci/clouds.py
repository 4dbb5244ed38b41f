"""What the workflows apply to: the simulated clouds, a state in an S3 gateway, and an OIDC exchange for both."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.local_cluster.stores import servers
from trainfleet.rehearsal.engine.find import Engine, find_engine
from trainfleet.rehearsal.simulation import provider
from trainfleet.rehearsal.simulation.state import Cloud

NOWHERE = "http://127.0.0.1:9"


class RefusedTokenError(Exception):
    """Raised when a role does not trust the token of a job."""


@dataclass
class Clouds:
    """The simulated cloud, the store of its state, and the trust policies of the roles."""

    cloud: Cloud
    providers: str
    store: servers.Server
    engine: Engine
    trust: dict[str, str] = field(default_factory=dict)
    """The subject that each role trusts: `repo:OWNER/NAME:environment:dev`, `...:ref:refs/heads/main`."""
    assumed: list[tuple[str, str]] = field(default_factory=list)
    """The roles that jobs assumed, with the subjects of their tokens."""

    @property
    def state_url(self) -> str:
        """The state backend, for `pulumi login`."""
        settings = "disableSSL=true&s3ForcePathStyle=true&region=us-east-1"
        return f"{self.store.url}?endpoint=127.0.0.1:{self.store.port}&{settings}"

    def assume(self, role: str, subject: str) -> dict[str, str]:
        """Exchange the token of a job for credentials; return their environment.

        Raises:
            RefusedTokenError: the role does not trust this subject.
        """
        if self.trust.get(role) != subject:
            raise RefusedTokenError(f"{role!r} does not trust {subject}")
        self.assumed.append((role, subject))
        return self.store.environment(self.store.port)

    def write_pulumi(self, folder: Path) -> None:
        """Write a `pulumi` that runs the real engine on the simulated clouds, as pulumi/actions installs one."""
        script = folder / "pulumi"
        script.write_text(
            '#!/bin/sh\nexport PULUMI_HOME="$HOME/.pulumi"\n'
            f"export PULUMI_DEBUG_PROVIDERS='{self.providers}' PULUMI_SKIP_UPDATE_CHECK=true\n"
            "export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true PULUMI_CONFIG_PASSPHRASE=key-of-the-kms\n"
            f'export TRAINFLEET_PYTHON="{sys.executable}" PATH="{self.engine.path.parent}:$PATH"\nexec "{self.engine.path}" "$@"\n'
        )
        script.chmod(0o755)


@contextlib.contextmanager
def clouds(folder: Path) -> Iterator[Clouds]:
    """Serve an empty simulated cloud and an empty store."""
    cloud, engine = Cloud(), find_engine(lambda line: print(line, file=sys.stderr))  # noqa: T201 - a build takes minutes
    with servers.start("s3", folder / "store") as store, provider.serve(cloud) as providers:
        yield Clouds(cloud, providers, store, engine)
