"""An AWS account as preflight reads it: botocore's session, limited to operations that read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import Any

from trainfleet.errors import MissingToolError, Problem
from trainfleet.infra.aws.layout import cluster_name
from trainfleet.infra.preflight import NotAnsweredError
from trainfleet.infra.preflight_requests import TIMEOUT_S, Cluster
from trainfleet.infra.spec.schema import PlatformSpec

READS = ("Get", "Describe", "List")
"""How the names of operations that only read begin."""
LOGIN = "aws sso login or aws configure, then AWS_PROFILE=NAME; in CI: AWS_ACCESS_KEY_ID or a web identity"
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnauthorizedAccess")
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException")


class Account:
    """One account and region."""

    def __init__(self, spec: PlatformSpec, session: Any) -> None:
        self._spec, self._session = spec, session
        self._clients: dict[str, Any] = {}
        self._creating, self._looking_up = Lock(), Lock()

    def read(self, service: str, operation: str, **request: Any) -> dict[str, Any]:
        """Return the answer of an operation, with all its pages.

        Args:
            service: botocore's name of the service.
            operation: the operation, in the API's spelling.
            request: its parameters.

        Raises:
            NotAnsweredError: no permission, or no connection.
            LookupError: there is no such resource.
        """
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        if not operation.startswith(READS):
            raise ValueError(f"{operation} may write")
        client, name = self._client(service), xform_name(operation)
        try:
            if client.can_paginate(name):
                pages: dict[str, Any] = client.get_paginator(name).paginate(**request).build_full_result()
                return pages
            answer: dict[str, Any] = getattr(client, name)(**request)
            return answer
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if "NotFound" in code or "NoSuch" in code:
                raise LookupError(code) from error
            raise NotAnsweredError(_reason(code, f"{service}:{operation}", error)) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise NotAnsweredError(f"{service}:{operation}: {error}") from error

    def _client(self, service: str) -> Any:
        with self._creating:
            if service not in self._clients:
                self._clients[service] = self._session.create_client(
                    service, region_name=self._spec.region, config=_limits()
                )
            return self._clients[service]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The caller: `Account` and `Arn`."""
        return self.read("sts", "GetCallerIdentity")

    def who(self) -> str:
        """Return the caller's ARN."""
        return str(self.identity["Arn"])

    @cached_property
    def _cluster(self) -> Cluster | None:
        try:
            found = self.read("eks", "DescribeCluster", name=cluster_name(self._spec))["cluster"]
        except LookupError:
            return None
        host = str(found.get("endpoint", "")).removeprefix("https://")
        return Cluster(host, str(found.get("tags", {}).get("trainfleet:platform", "")))

    def cluster(self) -> Cluster | None:
        """Return the cluster with the platform's name, or None."""
        with self._looking_up:
            return self._cluster


def _reason(code: str, operation: str, error: Exception) -> str:
    if code in DENIED:
        return f"the caller may not {operation}"
    if code in EXPIRED:
        return f"the credentials are expired or unknown: {LOGIN}"
    return f"{operation}: {error}"


def _roles(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The roles that Pulumi's provider assumes one after the other (pulumi-aws, provider configuration)."""
    several, one = settings.get("aws:assumeRoles") or [], settings.get("aws:assumeRole")
    return [each for each in (*several, one) if each and isinstance(each.get("roleArn"), str)]


def _assume(session: Any, region: str, role: Mapping[str, Any]) -> None:
    """Continue the session with temporary credentials of a role."""
    request = {"RoleArn": role["roleArn"], "RoleSessionName": str(role.get("sessionName") or "preflight")}
    if isinstance(role.get("externalId"), str):
        request["ExternalId"] = role["externalId"]
    client = session.create_client("sts", region_name=region, config=_limits())
    found = client.assume_role(**request)["Credentials"]
    session.set_credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])


def _limits() -> Any:
    from botocore.config import Config

    return Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 2})


def connect(spec: PlatformSpec, settings: Mapping[str, Any]) -> Account:
    """Return the account with the credentials of the AWS CLI (environment, profile, SSO, role of the machine)
    or, where the stack names roles to assume, with those of the last role.

    Raises:
        MissingToolError: there are no credentials, no such profile, or a role cannot be assumed.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import Session

    profile = settings.get("aws:profile")
    session = Session(profile=str(profile) if profile else None)
    # Outside EC2, nothing answers at the address of the instance metadata.
    session.set_config_variable("metadata_service_timeout", 1)
    session.set_config_variable("metadata_service_num_attempts", 1)
    try:
        if session.get_credentials() is not None:
            for role in _roles(settings):
                _assume(session, spec.region, role)
            return Account(spec, session)
        what = "no credentials were found"
    except (BotoCoreError, ClientError) as error:
        what = str(error)
    raise MissingToolError("AWS: not logged in", [Problem("credentials", what, LOGIN)])
