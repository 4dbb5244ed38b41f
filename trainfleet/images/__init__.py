"""Training images: built from images/Dockerfile, pushed to the platforms' registries, listed there."""
