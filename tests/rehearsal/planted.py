"""Tables of planted mistakes and of correct programs: what exists in a cloud, and what is created next."""

from __future__ import annotations
