"""Start a run: on this machine, on Kubernetes with KubeRay, with SkyPilot, or on VMs with Ray's launcher."""
