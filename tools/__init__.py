"""Pins of what is built from source: one go.mod and go.sum per tool."""
