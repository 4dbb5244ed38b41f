"""A cloud as CONTRIBUTING describes it: this folder, copied to infra/toy, and one row in infra/clouds.py."""
