"""Names from `random`, a key from `tls`, and what AWS makes of both."""

import pulumi
import pulumi_aws as aws
import pulumi_random as random
import pulumi_tls as tls

suffix = random.RandomId("suffix", byte_length=6)
password = random.RandomPassword("password", length=24, min_numeric=3, special=False)
pet = random.RandomPet("pet", length=3)
port = random.RandomInteger("port", min=20000, max=20100)
key = tls.PrivateKey("key", algorithm="RSA", rsa_bits=2048)
certificate = tls.SelfSignedCert(
    "certificate",
    private_key_pem=key.private_key_pem,
    validity_period_hours=24,
    allowed_uses=["key_encipherment", "server_auth"],
    dns_names=["example.org"],
    subject={"common_name": "example.org"},
)
bucket = aws.s3.Bucket("data", bucket=suffix.hex.apply(lambda digits: f"data-{digits}"), tags={"pet": pet.id})
aws.ec2.KeyPair("login", public_key=key.public_key_openssh, tags={"team": "ml"})
aws.secretsmanager.SecretVersion(
    "secret",
    secret_id=aws.secretsmanager.Secret("store").id,
    secret_string=pulumi.Output.json_dumps(
        {"password": password.result, "certificate": certificate.cert_pem}
    ),
)
for name, value in {
    "bucket": bucket.bucket,
    "suffix": suffix.hex,
    "password": password.result,
    "pet": pet.id,
    "port": port.result,
    "private_key": key.private_key_pem,
    "public_key": key.public_key_openssh,
    "certificate": certificate.cert_pem,
}.items():
    pulumi.export(name, value)
