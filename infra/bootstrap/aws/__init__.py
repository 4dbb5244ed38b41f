"""The bootstrap of an AWS account."""
