"""Data: prepares raw files as blocks once, then reads blocks in an order that any number of ranks can resume.

`sources` lists raw files, `prepare` makes block files, `prepared` opens them, `stream` reads them, `order`
decides the sample order. To add a source of rows, start at the docstring of
`trainfleet.training.data.prepare`.
"""

# Import neither torch nor pyarrow here: the command line and preparation processes import this package.
from trainfleet.training.data.bad_rows import BadInput, BadRowError, ChangedRow, Integrity, describe_left_out
from trainfleet.training.data.columns import Column
from trainfleet.training.data.order import (
    Order,
    SampleOrder,
    WindowOrder,
    check_sizes,
    make_order,
    permutation,
    share,
    spread,
)
from trainfleet.training.data.parts import Combine, PerRow, SplitRule, Transform
from trainfleet.training.data.prepare import prepare
from trainfleet.training.data.prepared import Prepared, open_prepared, prepared_source
from trainfleet.training.data.sources import Row, Source, find_source
from trainfleet.training.data.stream import Blocks, open_blocks

__all__ = [
    "BadInput",
    "BadRowError",
    "Blocks",
    "ChangedRow",
    "Column",
    "Combine",
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
    "describe_left_out",
    "find_source",
    "make_order",
    "open_blocks",
    "open_prepared",
    "permutation",
    "prepare",
    "prepared_source",
    "share",
    "spread",
]
