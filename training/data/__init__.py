"""Data: raw files turned into blocks once, and blocks read in an order that any number of ranks can enter
anywhere.

`sources` lists raw files, `preparation` makes block files of them, `stream` reads these, `order` says which
sample comes when; a workload
that brings rows starts at `trainfleet.training.data.prepare`'s docstring. Easy to get wrong: importing this
package imports neither torch
nor pyarrow, and must not: the processes that prepare data lack time for the one, and a command line for both.
"""

from trainfleet.training.data.bad_rows import Bad, BadRowError, Integrity, left_out
from trainfleet.training.data.columns import Column
from trainfleet.training.data.order import (
    Order,
    SampleOrder,
    WindowOrder,
    check_sizes,
    make_order,
    micro_batch_starts,
    permutation,
    share,
    spread,
)
from trainfleet.training.data.prepare import PerRow, Prepared, SplitRule, Transform, open_prepared, prepare
from trainfleet.training.data.sources import Row, Source, find_source
from trainfleet.training.data.stream import Blocks, open_blocks

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
