"""Any torch operator as an operation, with rules derived from torch or written by hand."""
