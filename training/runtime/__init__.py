"""What a training process runs on: process groups, Ray, events, failpoints and local resources."""
