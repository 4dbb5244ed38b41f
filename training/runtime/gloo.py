"""How gloo connects the ranks of its groups."""

from __future__ import annotations

VARIABLES = {"TORCH_GLOO_LAZY_INIT": "1"}
"""A group connects two ranks when they first exchange something, and not each rank with all others at once
(torch/csrc/distributed/c10d/ProcessGroupGloo.hpp). Set before the group is made, unless it is set already.
"""
