"""Validation of JSON documents inside resource inputs."""
