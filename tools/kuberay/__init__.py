"""Pins of KubeRay: where its resource definitions come from."""
