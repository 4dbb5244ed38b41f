"""Names that the cluster layer defines and others rely on: launchers (through the contract), runbooks,
policies. Imports no Pulumi.
"""

from __future__ import annotations

# NOTE: running trainings use these names; renaming one replaces its object.
KUBERAY_NAMESPACE = "kuberay-system"
GPU_NAMESPACE = "gpu-system"
NODE_NAMESPACE = "node-system"
"""Agents that read the host: node exporter and node problem detector."""
QUEUE_NAMESPACE = "kueue-system"
MONITORING_NAMESPACE = "monitoring"
SECRETS_NAMESPACE = "external-secrets"
CERTIFICATES_NAMESPACE = "cert-manager"
SIGNER_NAMESPACE = "ray-certificates"
"""The signer of Ray's certificates and its CA, alone: nobody else has rights here."""
BUILT_IN = ("default", "kube-system", "kube-public", "kube-node-lease")

TRAINING_NAMESPACE = "training"
QUEUE = "training"
"""The Kueue LocalQueue in the training namespace, and the ClusterQueue behind it."""
PRIORITIES = {"trainfleet-high": 100_000, "trainfleet-normal": 10_000, "trainfleet-low": 1_000}
"""Priority classes of pods, and of workloads in the queue. In the queue a
run preempts those of lower priority; the scheduler lets only `high` preempt pods.
"""

LAUNCHER_ACCOUNT = "launcher"
"""Service account in the training namespace. People request tokens of it that last hours; SkyPilot's
controllers cannot run a login command (skypilot#4379).
"""
LAUNCHER_TOKEN = "launcher-token"
"""With `layer.launcher_token`, the Secret that the cluster fills with a token of that account that never
expires.
"""

SECRET_STORE = "cloud"
"""The external-secrets ClusterSecretStore of the cloud's secret manager."""

RAY_CA = "ray-ca"
"""The CA that signs the certificates of Ray's pods: Secret (tls.crt, tls.key) in the signer's namespace, and
ConfigMap (ca.crt) in the training namespace.
"""
RAY_SIGNER, RAY_SIGNER_PORT = "ray-signer", 8443
RAY_SIGNER_HOST = f"{RAY_SIGNER}.{SIGNER_NAMESPACE}.svc"
RAY_SIGNER_AUDIENCE = "ray-signer.trainfleet"
"""Of the token by which a pod proves which one it is. No other server accepts it."""
RAY_TLS_CONFIG = "ray-tls"
"""ConfigMap with the program that gets a pod's certificate in an init container."""
RAY_TLS_SCRIPT = "certificate.py"
RAY_TLS_CONFIG_MOUNT = "/etc/ray/setup"
RAY_TLS_MOUNT = "/etc/ray/tls"
RAY_TLS_ENVIRONMENT = {
    "RAY_USE_TLS": "1",
    "RAY_TLS_SERVER_CERT": f"{RAY_TLS_MOUNT}/tls.crt",
    "RAY_TLS_SERVER_KEY": f"{RAY_TLS_MOUNT}/tls.key",
    "RAY_TLS_CA_CERT": f"{RAY_TLS_MOUNT}/ca.crt",
}
"""Environment of every process that connects to Ray, after the init container has run."""

REDIS, REDIS_PORT, REDIS_PASSWORD_KEY = "ray-redis", 6379, "password"
"""The Redis for Ray's control store in the training namespace: StatefulSet, service, and the Secret with its
password.
"""

STORAGE_CLASS = "trainfleet-encrypted"
