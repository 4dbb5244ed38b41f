"""Data: raw files turned into blocks once, and blocks read in an order that any number of ranks can enter anywhere.

`order` says which sample comes when, `prepare` makes block files of raw ones, `stream` reads them. Importing this package
imports neither torch nor pyarrow: the processes that prepare data need the one, and a command line needs neither.
"""

from training.data.order import Order, SampleOrder, WindowOrder, check_sizes, make_order, micro_batch_starts, permutation, share, spread

__all__ = ["Order", "SampleOrder", "WindowOrder", "check_sizes", "make_order", "micro_batch_starts", "permutation", "share", "spread"]
