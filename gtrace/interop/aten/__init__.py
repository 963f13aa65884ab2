"""Any operator of torch as an operation, with rules derived from torch or written by hand."""
