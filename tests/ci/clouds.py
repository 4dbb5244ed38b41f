"""What the workflows apply to: the simulated clouds, a state in an S3 gateway, and an OIDC exchange for both."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.infra.bootstrap.aws import build
from trainfleet.local_cluster.stores import servers
from trainfleet.rehearsal.engine.find import Engine, find_engine
from trainfleet.rehearsal.simulation import provider
from trainfleet.rehearsal.simulation.state import Cloud

NOWHERE = "http://127.0.0.1:9"
LOOPBACK = "127.1"
NO_PROXY = f"127.0.0.1,{LOOPBACK}"


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

    @property
    def state_url_of_bootstrap(self) -> str:
        """The same as the bootstrap's `stateUrl`, for a client that finds the gateway and the STS in AWS_ENDPOINT_URL_*."""
        return f"{self.store.url}{build.QUERY}us-east-1"

    @property
    def endpoint(self) -> str:
        """The gateway for launches: they refuse the loopback interface by its usual names, which in a pod is the pod's
        own. The pods of the stand-in for a cluster are on this machine.
        """
        return f"http://{LOOPBACK}:{self.store.port}"

    def assume(self, role: str, subject: str) -> dict[str, str]:
        """Exchange the token of a job for credentials; return their environment.

        Raises:
            RefusedTokenError: the role does not trust this subject.
        """
        if self.trust.get(role) != subject:
            raise RefusedTokenError(f"{role!r} does not trust {subject}")
        self.assumed.append((role, subject))
        return self.store.environment(self.store.port) | {"TRAINFLEET_S3_ENDPOINT": self.endpoint}

    def write_pulumi(self, folder: Path) -> None:
        """Write a `pulumi` that runs the real engine on the simulated clouds, as pulumi/actions installs one."""
        folder.mkdir(exist_ok=True)
        script, schema = folder / "pulumi", Path(__file__).with_name("package_schema.py")
        # What a rehearsal or a diff sets itself stays: they have simulated clouds of their own.
        script.write_text(
            f"""#!/bin/sh
export PULUMI_HOME="${{PULUMI_HOME:-$HOME/.pulumi}}" PULUMI_SKIP_UPDATE_CHECK=true
if [ -n "$AWS_ENDPOINT_URL_S3" ]; then export AWS_ENDPOINT_URL_S3=http://127.0.0.1:{self.store.port}; fi # by its IP address
export PULUMI_DEBUG_PROVIDERS="${{PULUMI_DEBUG_PROVIDERS:-{self.providers}}}"
export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true
export PULUMI_CONFIG_PASSPHRASE="${{PULUMI_CONFIG_PASSPHRASE:-key-of-the-kms}}"
export TRAINFLEET_PYTHON="{sys.executable}" PATH="{self.engine.path.parent}:$PATH"
if [ "$1 $2" = "package get-schema" ]; then exec "{sys.executable}" "{schema}" "$3"; fi
exec "{self.engine.path}" "$@"
"""
        )
        script.chmod(0o755)


@contextlib.contextmanager
def clouds(folder: Path) -> Iterator[Clouds]:
    """Serve an empty simulated cloud and an empty store."""
    cloud, engine = Cloud(), find_engine(lambda line: print(line, file=sys.stderr))  # noqa: T201 - a build takes minutes
    with servers.start("s3", folder / "store") as store, provider.serve(cloud) as providers:
        yield Clouds(cloud, providers, store, engine)
