"""What the generated workflows install: actions, pinned by the commits of releases, and versions of tools."""

from __future__ import annotations

PULUMI = "3.200.0"
"""The oldest version that is supported and the one that the tests run: plan and apply need the same one."""

KUBECTL, KUBELOGIN = "1.36.3", "0.2.19"
"""For clusters of Azure, from `az aks install-cli`. That kubectl is the one of `trainfleet cluster up`."""

ACTIONS = {
    "checkout": "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "setup_python": "actions/setup-python@a309ff8b426b58ec0e2a45f0f869d46889d02405 # v6.2.0",
    "cache": "actions/cache@cdf6c1fa76f9f475f3d7449005a359c84ca0f306 # v5.0.3",
    "upload": "actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1",
    "download": "actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
    "pulumi": "pulumi/actions@8e5e406f4007fca908480587cb9893c07090f58d # v7.0.0",
    "aws": "aws-actions/configure-aws-credentials@8df5847569e6427dd6c4fb1cf565c83acfa8afa7 # v6.0.0",
    "gcp": "google-github-actions/auth@7c6bc770dae815cd3e89ee6cdf493a5fab2cc093 # v3.0.0",
    "gcloud": "google-github-actions/setup-gcloud@aa5489c8933f4cc7a4f7d45035b3b1440c9c10db # v3.0.1",
    "sarif": "github/codeql-action/upload-sarif@cdf488f595d80d6e07e03d4674febd5ab45fa938 # v4.37.9",
}
"""`owner/name@commit # release`, as workflows in several public repositories pin them."""
