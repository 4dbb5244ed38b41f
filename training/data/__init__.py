"""Data: raw files turned into blocks once, and blocks read in an order that any number of ranks can enter anywhere.

`sources` lists raw files, `preparation` makes block files of them, `stream` reads these, `order` says which sample comes when; a workload
that brings rows starts at `training.data.preparation`'s docstring. Easy to get wrong: importing this package imports neither torch
nor pyarrow, and must not: the processes that prepare data lack time for the one, and a command line for both.
"""

from training.data.columns import Column
from training.data.integrity import Bad, BadRowError, Integrity, left_out
from training.data.order import Order, SampleOrder, WindowOrder, check_sizes, make_order, micro_batch_starts, permutation, share, spread
from training.data.preparation import PerRow, Prepared, SplitRule, Transform, open_prepared, prepare
from training.data.sources import Row, Source, find_source
from training.data.stream import Blocks, open_blocks

__all__ = [
    "Bad",
    "BadRowError",
    "Blocks",
    "Column",
    "Integrity",
    "Order",
    "PerRow",
    "Prepared",
    "Row",
    "SampleOrder",
    "Source",
    "SplitRule",
    "Transform",
    "WindowOrder",
    "check_sizes",
    "find_source",
    "left_out",
    "make_order",
    "micro_batch_starts",
    "open_blocks",
    "open_prepared",
    "permutation",
    "prepare",
    "share",
    "spread",
]
