"""The package `tls`: real keys and certificates, derived from the resource's id.

They are the same in every rehearsal and therefore no secrets: never use one elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import random
from datetime import UTC, datetime, time, timedelta
from typing import Any

from trainfleet.dates import today
from trainfleet.errors import MissingToolError, Problem
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel
from trainfleet.rehearsal.simulation.pulumi_values import secret

_IN_PLACE = ("earlyRenewalHours",)
_SUBJECT = {
    "commonName": "COMMON_NAME",
    "organization": "ORGANIZATION_NAME",
    "organizationalUnit": "ORGANIZATIONAL_UNIT_NAME",
    "country": "COUNTRY_NAME",
    "province": "STATE_OR_PROVINCE_NAME",
    "locality": "LOCALITY_NAME",
    "streetAddress": "STREET_ADDRESS",
    "postalCode": "POSTAL_CODE",
    "serialNumber": "SERIAL_NUMBER",
}
_USAGES = {
    "digital_signature": "digital_signature",
    "content_commitment": "content_commitment",
    "key_encipherment": "key_encipherment",
    "data_encipherment": "data_encipherment",
    "key_agreement": "key_agreement",
    "cert_signing": "key_cert_sign",
    "crl_signing": "crl_sign",
}
_EXTENDED = {
    "server_auth": "SERVER_AUTH",
    "client_auth": "CLIENT_AUTH",
    "code_signing": "CODE_SIGNING",
    "email_protection": "EMAIL_PROTECTION",
    "timestamping": "TIME_STAMPING",
    "ocsp_signing": "OCSP_SIGNING",
}


class TlsModel(ComputedModel):
    """Private keys, certificate requests, and certificates that are self-signed or signed by another one."""

    source = "terraform-provider-tls internal/provider/resource_*.go, plan modifiers RequiresReplace"

    def mistakes(self, kind: str, inputs: dict[str, Any]) -> list[Mistake]:
        found = [
            Mistake(name, "is not a private key in PEM format", source=self.source)
            for name in ("privateKeyPem", "caPrivateKeyPem")
            if isinstance(inputs.get(name), str) and not _is_key(inputs[name])
        ]
        if kind == "PrivateKey" and inputs.get("algorithm") not in ("RSA", "ECDSA", "ED25519"):
            found.append(
                Mistake(
                    "algorithm",
                    f"{inputs.get('algorithm')!r} is not known",
                    "RSA, ECDSA or ED25519",
                    source=self.source,
                )
            )
        return found

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:
        _need_cryptography()
        if kind == "PrivateKey":
            return _of_key(
                _key(
                    seed,
                    inputs["algorithm"],
                    int(inputs.get("rsaBits") or 2048),
                    inputs.get("ecdsaCurve") or "P224",
                )
            )
        if kind == "SelfSignedCert":
            key = _load_key(inputs["privateKeyPem"])
            own = _name(inputs.get("subject") or {})
            return _certificate(inputs, seed, (own, key.public_key(), _alternatives(inputs)), (own, key)) | {
                "keyAlgorithm": _algorithm(key)
            }
        if kind == "CertRequest":
            key = _load_key(inputs["privateKeyPem"])
            return {"certRequestPem": _request(inputs, key), "keyAlgorithm": _algorithm(key)}
        if kind == "LocallySignedCert":
            return _signed(inputs, seed)
        return {}

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:  # noqa: ARG002 - shared signature
        return path[0] not in _IN_PLACE

    def knows_replacements(self, token: str) -> bool:  # noqa: ARG002 - shared signature
        return True


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is installed
    except ImportError as error:
        raise MissingToolError(
            "keys cannot be made",
            [
                Problem(
                    "tls", "the Python package `cryptography` is not installed", "pip install cryptography"
                )
            ],
        ) from error


def _is_key(pem: str) -> bool:
    try:
        _load_key(pem)
    except (ValueError, TypeError):
        return False
    return True


def _load_key(pem: str) -> Any:
    from cryptography.hazmat.primitives import serialization

    return (
        serialization.load_ssh_private_key(pem.encode(), None)
        if "OPENSSH" in pem
        else serialization.load_pem_private_key(pem.encode(), None)
    )


@functools.cache
def _key(seed: str, algorithm: str, bits: int, curve: str) -> Any:
    """Return a key that depends only on the arguments."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    material = hashlib.sha512(f"{seed}|{algorithm}".encode()).digest()
    if algorithm == "ED25519":
        return ed25519.Ed25519PrivateKey.from_private_bytes(material[:32])
    if algorithm == "ECDSA":
        curves: dict[str, ec.EllipticCurve] = {
            "P224": ec.SECP224R1(),
            "P256": ec.SECP256R1(),
            "P384": ec.SECP384R1(),
            "P521": ec.SECP521R1(),
        }
        kind = curves[curve]
        return ec.derive_private_key(int.from_bytes(material[: kind.key_size // 8 - 1]) + 1, kind)
    return _rsa(random.Random(material), bits)


def _rsa(draw: random.Random, bits: int) -> Any:
    from cryptography.hazmat.primitives.asymmetric import rsa

    exponent = 65537
    while True:
        p, q = _prime(draw, bits // 2), _prime(draw, bits - bits // 2)
        if p != q and (p - 1) % exponent and (q - 1) % exponent:
            break
    secret_exponent = pow(exponent, -1, (p - 1) * (q - 1))
    return rsa.RSAPrivateNumbers(
        p,
        q,
        secret_exponent,
        rsa.rsa_crt_dmp1(secret_exponent, p),
        rsa.rsa_crt_dmq1(secret_exponent, q),
        rsa.rsa_crt_iqmp(p, q),
        rsa.RSAPublicNumbers(exponent, p * q),
    ).private_key()


@functools.cache
def _small_primes() -> int:
    """Return the product of the primes below 10,000."""
    sieve, product = bytearray([1]) * 10_000, 1
    for number in range(2, 10_000):
        if sieve[number]:
            product *= number
            sieve[number * number :: number] = bytes(len(range(number * number, 10_000, number)))
    return product


def _prime(draw: random.Random, bits: int) -> int:
    import math

    while True:
        candidate = draw.getrandbits(bits) | (3 << (bits - 2)) | 1
        if math.gcd(candidate, _small_primes()) == 1 and all(
            _probably_prime(candidate, draw.randrange(2, candidate)) for _ in range(4)
        ):
            return candidate


def _probably_prime(number: int, base: int) -> bool:
    """Return the result of one round of Miller and Rabin."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    value = pow(base, odd, number)
    if value in (1, number - 1):
        return True
    for _ in range(twos - 1):
        value = value * value % number
        if value == number - 1:
            return True
    return False


def _algorithm(key: Any) -> str:
    name = type(key).__name__.upper()
    return "ED25519" if "ED25519" in name else "RSA" if "RSA" in name else "ECDSA"


def _of_key(key: Any) -> dict[str, Any]:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    def private(form: PrivateFormat) -> str:
        return str(key.private_bytes(Encoding.PEM, form, NoEncryption()).decode())

    pkcs8 = private(PrivateFormat.PKCS8)
    pem = pkcs8 if _algorithm(key) == "ED25519" else private(PrivateFormat.TraditionalOpenSSL)
    public = key.public_key()
    outputs = {
        "privateKeyPem": secret(pem),
        "privateKeyPemPkcs8": secret(pkcs8),
        "privateKeyOpenssh": secret(""),
        "publicKeyPem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
        "publicKeyOpenssh": "",
        "publicKeyFingerprintMd5": "",
        "publicKeyFingerprintSha256": "",
    }
    if getattr(getattr(key, "curve", None), "name", "") == "secp224r1":  # OpenSSH has no P-224
        return outputs
    line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    import base64

    blob = base64.b64decode(line.split()[1])
    digest = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    sha256 = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return outputs | {
        "privateKeyOpenssh": secret(private(PrivateFormat.OpenSSH)),
        "publicKeyOpenssh": f"{line}\n",
        "publicKeyFingerprintMd5": ":".join(digest[at : at + 2] for at in range(0, 32, 2)),
        "publicKeyFingerprintSha256": f"SHA256:{sha256}",
    }


def _name(subject: dict[str, Any]) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = []
    for key, oid in _SUBJECT.items():
        given = subject.get(key) or subject.get({"streetAddress": "streetAddresses"}.get(key, key))
        values = given if isinstance(given, list) else [given] if given else []
        parts += [x509.NameAttribute(getattr(NameOID, oid), str(value)) for value in values]
    return x509.Name(parts)


def _alternatives(inputs: dict[str, Any]) -> Any:
    from cryptography import x509

    names: list[Any] = [x509.DNSName(name) for name in inputs.get("dnsNames") or ()]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in inputs.get("ipAddresses") or ()]
    names += [x509.UniformResourceIdentifier(each) for each in inputs.get("uris") or ()]
    return x509.SubjectAlternativeName(names) if names else None


def _request(inputs: dict[str, Any], key: Any) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(inputs.get("subject") or {}))
    if (alternatives := _alternatives(inputs)) is not None:
        builder = builder.add_extension(alternatives, critical=False)
    return str(builder.sign(key, _hash(key), **_repeatable(key)).public_bytes(Encoding.PEM).decode())


def _signed(inputs: dict[str, Any], seed: str) -> dict[str, Any]:
    from cryptography import x509

    request = x509.load_pem_x509_csr(inputs["certRequestPem"].encode())
    authority = x509.load_pem_x509_certificate(inputs["caCertPem"].encode())
    key = _load_key(inputs["caPrivateKeyPem"])
    alternatives = next(
        (each.value for each in request.extensions if isinstance(each.value, x509.SubjectAlternativeName)),
        None,
    )
    owner = (request.subject, request.public_key(), alternatives)
    return _certificate(inputs, seed, owner, (authority.subject, key)) | {"caKeyAlgorithm": _algorithm(key)}


def _certificate(
    inputs: dict[str, Any], seed: str, owner: tuple[Any, Any, Any], issuer: tuple[Any, Any]
) -> dict[str, Any]:
    """Return a certificate for the owner's name, public key and alternative names, signed by the issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID

    start = datetime.combine(today(), time(), tzinfo=UTC)
    end = start + timedelta(hours=int(inputs["validityPeriodHours"]))
    uses = list(inputs.get("allowedUses") or ())
    name, key, alternatives = owner
    builder = (
        x509.CertificateBuilder(issuer[0], name, key)
        .serial_number(int(hashlib.sha256(seed.encode()).hexdigest()[:30], 16) + 1)
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(bool(inputs.get("isCaCertificate")), None), critical=True)
    )
    if plain := {_USAGES[use] for use in uses if use in _USAGES}:
        flags = dict.fromkeys((*_USAGES.values(), "encipher_only", "decipher_only"), False)
        usage = x509.KeyUsage(**(flags | dict.fromkeys(plain, True)))
        builder = builder.add_extension(usage, critical=True)
    if extended := [getattr(ExtendedKeyUsageOID, _EXTENDED[use]) for use in uses if use in _EXTENDED]:
        builder = builder.add_extension(x509.ExtendedKeyUsage(extended), critical=False)
    if alternatives is not None:
        builder = builder.add_extension(alternatives, critical=False)
    made = builder.sign(issuer[1], _hash(issuer[1]), **_repeatable(issuer[1]))
    return {
        "certPem": made.public_bytes(Encoding.PEM).decode(),
        "validityStartTime": start.isoformat().replace("+00:00", "Z"),
        "validityEndTime": end.isoformat().replace("+00:00", "Z"),
        "readyForRenewal": False,
    }


def _hash(key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return None if _algorithm(key) == "ED25519" else hashes.SHA256()


def _repeatable(key: Any) -> dict[str, Any]:
    """Return the arguments that make a signature depend on nothing but the document and the key."""
    return {"ecdsa_deterministic": True} if _algorithm(key) == "ECDSA" else {}
