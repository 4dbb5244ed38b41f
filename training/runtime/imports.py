"""Faster imports at the start of a process of a run."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import without the cyclic garbage collector, which otherwise visits all modules again and again.

    Imports make nearly only objects that stay (torch, Ray and the loop: a million), so collections among them
    take a fifth of the CPU time and free nothing. What exists at the end of the block is then left out of
    later collections (`gc.freeze`), which are those of the step loop. Inside another such block, nothing is
    changed.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)  # Triton reports what the interpreter does not release at its end
