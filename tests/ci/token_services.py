"""The token services of Google Cloud and Microsoft Entra ID, behind a proxy of the loopback interface.

A job's clients connect through HTTPS_PROXY and trust a CA of the test, so the addresses, audiences and requests
are those of the job and of the clouds' libraries. A token of a job is exchanged where the bootstrap of the
repository trusts it; its signature is not verified. Every other host is unreachable.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509

from tests.bootstrap.tokens import accepted
from tests.certificates import self_signed
from tests.ci.clouds import NO_PROXY
from tests.ci.gitlab_services import read_token, token
from tests.ci.loopback import listening
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.local_cluster.stores import servers

GOOGLE, IMPERSONATION, ENTRA = (
    "sts.googleapis.com",
    "iamcredentials.googleapis.com",
    "login.microsoftonline.com",
)
PROJECTS = "cloudresourcemanager.googleapis.com"
"""google-auth asks it for the name of the project, which it may do without."""
HOSTS = (GOOGLE, IMPERSONATION, PROJECTS, ENTRA)
POOL = "projects/123456789/locations/global/workloadIdentityPools/ci-systems/providers/"
TENANT = "99999999-0000-4000-8000-000000000009"
IDENTITIES = {
    "gcp": {each: f"ci-{each}-stacks@acme-ml-123456.iam.gserviceaccount.com" for each in ("plan", "apply")},
    "azure": {
        "plan": "aaaaaaaa-0000-4000-8000-00000000000a",
        "apply": "bbbbbbbb-0000-4000-8000-00000000000b",
    },
}
"""What PLAN_IDENTITY and APPLY_IDENTITY are: a service account, the client id of a managed identity."""
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
Answer = tuple[int, Any]


class TokenServices:
    """What the identities trust is what the bootstrap of this spec makes them trust."""

    def __init__(self, spec: BootstrapSpec, folder: Path) -> None:
        self.spec, self.port = spec, 0
        self.ca, self.key = certificate(folder)
        self.assumed: list[tuple[str, str]] = []
        """The identities that jobs assumed, with the subjects of their tokens."""
        self.issued: set[str] = set()
        self.lifetime_s = 600.0
        """How long a token of a job and keys of the gateway are valid."""
        self.requested: list[str] = []
        """The audiences of the tokens that jobs requested."""

    @property
    def address(self) -> str:
        """The proxy, which also gives keys of the gateway and tokens of GitHub's jobs."""
        return f"http://127.0.0.1:{self.port}"

    def variables(self, system: str) -> dict[str, str]:
        """The variables of a repository that name what the bootstrap created; the identities are apart."""
        if self.spec.cloud == "gcp":
            return {"IDENTITY_PROVIDER": POOL + system}
        return {"TENANT_ID": TENANT, "SUBSCRIPTION_ID": self.spec.account}

    def exchange(self, host: str, path: str, form: Mapping[str, str], bearer: str) -> Answer:
        """Answer a request to one of the services."""
        if host == GOOGLE and path == "/v1/token":
            return self._federated(form)
        if host == IMPERSONATION and path.endswith(":generateAccessToken"):
            return self._impersonated(path.rpartition("/")[2].partition(":")[0], bearer)
        if host == ENTRA and path == f"/{TENANT}/oauth2/v2.0/token":
            return self._entra(form)
        if host == ENTRA and path.endswith("/openid-configuration"):
            base = f"https://{ENTRA}/{TENANT}"
            return 200, {
                "token_endpoint": f"{base}/oauth2/v2.0/token",
                "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                "issuer": f"{base}/v2.0",
            }
        if host == ENTRA and path == "/common/discovery/instance":
            known = {"preferred_network": ENTRA, "preferred_cache": ENTRA, "aliases": [ENTRA]}
            return 200, {"api-version": "1.1", "metadata": [known]}
        return (403 if host == PROJECTS else 404), {"error": {"message": "not answered here"}}

    def _federated(self, form: Mapping[str, str]) -> Answer:
        """Security Token Service: a token of the pool for one of CI (RFC 8693)."""
        claims = read_token(form["subject_token"])
        provider = form["audience"].removeprefix("//iam.googleapis.com/")
        system = provider.removeprefix(POOL)
        found = set[str]()
        if form["grant_type"] == EXCHANGE and claims["aud"] == f"https://iam.googleapis.com/{POOL}{system}":
            found = accepted("gcp", self.spec, {**claims, "aud": f"gcp:{system}"})
        if not found:
            what = "The given credential is rejected by the attribute condition."
            return 400, {"error": "unauthorized_client", "error_description": what}
        made = self._issue({"sub": claims["sub"], "may": " ".join(sorted(found))}, keys=False)
        return 200, {"access_token": made, "expires_in": 3599, "token_type": "Bearer",
                     "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}  # fmt: skip

    def _impersonated(self, account: str, bearer: str) -> Answer:
        """IAM Service Account Credentials: a token of a service account."""
        claims = read_token(bearer)
        identity = _identity("gcp", account)
        if identity not in claims["may"].split():
            what = f"Permission 'iam.serviceAccounts.getAccessToken' denied on {account} as {claims['sub']}"
            return 403, {"error": {"code": 403, "message": what, "status": "PERMISSION_DENIED"}}
        self.assumed.append((identity, claims["sub"]))
        made = self._issue({"sub": account})
        return 200, {"accessToken": made, "expireTime": "2099-01-01T00:00:00Z"}

    def _entra(self, form: Mapping[str, str]) -> Answer:
        """Microsoft identity platform: client credentials with a federated credential."""
        claims = read_token(form["client_assertion"])
        identity = _identity("azure", form["client_id"])
        if float(claims.pop("exp", "inf")) < time.time():
            what = "AADSTS700024: Client assertion is not within its valid time range."
            return 401, {"error": "invalid_client", "error_description": what}
        trusted = accepted("azure", self.spec, claims)
        if form["client_assertion_type"] != ASSERTION or identity not in trusted:
            what = "AADSTS700213: No matching federated identity record found for presented assertion subject"
            return 401, {"error": "invalid_client", "error_description": f"{what} '{claims['sub']}'."}
        self.assumed.append((identity, claims["sub"]))
        made = self._issue({"aud": form["scope"], "appid": form["client_id"], "oid": form["client_id"]})
        return 200, {"token_type": "Bearer", "expires_in": 3599, "access_token": made}

    def _issue(self, claims: dict[str, str], *, keys: bool = True) -> str:
        made = token(claims)
        if keys:
            self.issued.add(made)
        return made

    def local(self, path: str, query: Mapping[str, str], bearer: str) -> Answer:
        """Answer a request without TLS: GitHub's token of a job, and keys of the gateway for a cloud's token."""
        if path == "/job-token":
            claims = {**json.loads(bearer), "aud": query["audience"]}
            self.requested.append(claims["aud"])
            return 200, {"value": token({**claims, "exp": f"{time.time() + self.lifetime_s:.0f}"})}
        if path == "/keys" and bearer in self.issued:
            return 200, {
                "Version": 1, "AccessKeyId": servers.KEY, "SecretAccessKey": servers.SECRET, "SessionToken": "",
                "Expiration": datetime.fromtimestamp(time.time() + self.lifetime_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }  # fmt: skip
        return 403, {"error": "not a token of this cloud"}

    def environment(self, folder: Path, gateway: str) -> dict[str, str]:
        """What the clients of a job need: the proxy, its CA, and keys of the state's gateway for their login."""
        keys = Path(__file__).with_name("cloud_keys.py")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "aws").write_text(f"[default]\ncredential_process = {_python()} {keys}\n")
        return {
            "HTTPS_PROXY": self.address,
            "NO_PROXY": NO_PROXY,
            "REQUESTS_CA_BUNDLE": str(self.ca),
            "KEYS_OF_THE_GATEWAY": f"{self.address}/keys",
            "AWS_CONFIG_FILE": str(folder / "aws"),
            "AWS_ENDPOINT_URL_S3": gateway,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "TRAINFLEET_S3_ENDPOINT": gateway,
        }


def _python() -> str:
    import sys

    return sys.executable


def _identity(cloud: str, value: str) -> str:
    return next((each for each, known in IDENTITIES[cloud].items() if known == value), "")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of the services that is its own CA, and its key."""
    return self_signed(folder, [x509.DNSName(each) for each in HOSTS])


class _Handler(http.server.BaseHTTPRequestHandler):
    """A proxy that answers for HOSTS itself."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    host = ""

    def __init__(self, services: TokenServices, *arguments: Any, host: str = "") -> None:
        self.services, self.host = services, host
        super().__init__(*arguments)

    def do_CONNECT(self) -> None:
        self.close_connection = True
        host = self.path.partition(":")[0]
        if host not in HOSTS:
            self.send_error(502)
            return
        self.send_response_only(200)
        self.end_headers()
        self.wfile.flush()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.services.ca, self.services.key)
        with contextlib.suppress(OSError), context.wrap_socket(self.connection, server_side=True) as inner:
            _Handler(self.services, inner, self.client_address, self.server, host=host)

    def answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        values = parse_qs(f"{url.query}&{body}" if not body.startswith("{") else url.query)
        form = {key: each[0] for key, each in values.items()}
        bearer = self.headers.get("Authorization", "").partition(" ")[2]
        code, found = (
            self.services.exchange(self.host, url.path, form, bearer)
            if self.host
            else self.services.local(url.path, form, bearer)
        )
        text = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.wfile.flush()

    do_GET = do_POST = answer  # noqa: N815 - names of the base class

    def log_message(self, *_arguments: Any) -> None:
        """Write nothing."""


@contextlib.contextmanager
def serve(services: TokenServices) -> Iterator[TokenServices]:
    """Answer until the end of the block."""
    with listening(functools.partial(_Handler, services)) as services.port:
        yield services
