"""Numbers that the interpreter was tuned by. Each says what measured it and where, or why it was chosen."""

LEAST_WORK = 1 << 21
"""Multiplications of a product from which on oneDNN is faster: it takes 10 us to find its code for the sizes.
Measured: 1,024 x 256 x 1,024 in 1.1 ms, by MKL 2.5; 64 x 64 x 64 in 13 us, by MKL 7; AMD, AVX-512."""

LEAST_CALL = 1 << 14
"""Multiplications from which on torch's library is as fast as C++ of our own, on processors that it is made for.
Measured: such a gradient (64-1,024-10, 16 examples) takes 105 us, by the library 215; processor not noted."""

LEAST_SIZE = 4
"""Rows, columns and terms from which on oneDNN is faster: MKL has code of its own for vectors.
Chosen: smaller ones are what that code is for."""

LEAST_COLUMNS = 256
"""Columns from which on oneDNN is faster although it copies a transposed first matrix.
Measured: gradients of weights take 1.1 to 2.7 of MKL's time where the copy does not pay; AMD Zen 4."""

LONG_SUM = 1 << 15
"""Terms of the sums of a product from which on it is computed in blocks.
Chosen: that many float32 terms one by one may lose three of seven digits."""

SUM_BLOCK = 1 << 7
"""Terms of such a block, which are added one by one; the sums of the blocks are added by pairs.
Measured: 10,000,000 terms of 0.1 in 16 ms, 1e-6 off; blocks of 1,024 take 50 ms and are 1.4e-5 off; Intel."""

FEW_SUMS = 64
"""Sums of a product, at most, that is computed in blocks. For more, torch's library has blocks of its own.
Chosen: the products of that many vectors."""

MOST_BESIDE = 4
"""Times up to which elements are repeated by putting arrays beside each other.
Measured: a repeat by two in 0.45 ms, by torch 0.89; AMD Zen 4."""

FEW_COUNTERS = 4
"""Counters of the cipher up to which Python's integers are fastest.
Measured: a key that is split takes 23 us, by 120 calls of torch 266; processor not noted."""

COUNTER_CHUNK = 1 << 16
"""Counters of the cipher that are computed at a time, so that they stay in the nearest caches.
Measured: a million in 13 ms, 73 with all at a time; processor not noted."""

LEAST_ONE_HOT = 1 << 14
"""Elements of a one-hot array from which on few writes are faster than comparisons of all.
Measured: 1,024 classes of 1,024 tokens in 0.08 ms, by comparisons 1.04; processor not noted."""

LEAST_SLOPE = 1 << 16
"""Elements of gelu's slope from which on they are looked at first: most need no copy within limits.
Measured: 0.08 ms in place of 0.24 to 1 in a transformer's step; processor not noted."""

MOST_SEARCHED = 5
"""Operands of an einsum, at most, of which all orders are compared.
Chosen: there are 180 orders of five operands, and 2,700 of six."""

LEAST_CHOSEN = 1 << 13
"""Elements from which on choosing rows by their own kernel is faster: the places are looked at before.
Measured: 4,000 rows of 64 in 16 us, by torch's kernel for elements 149; processor not noted."""

LEAST_CHOSEN_ROW = 4
"""Elements of a row from which on it is.
Chosen: shorter ones are moved like elements."""

ONE_BY_ONE, MOST_GROUPS = 64, 64
"""Pixels of a channel that a batch norm adds one by one, and how many times as many groups there may be for that.
Measured: 0.45 ms for 32 x 16 x 32 x 32, by the kernel for channels in front 0.42, for channels last 0.20; Intel."""

SIGNS, MOVED_AT_ONCE = 1 << 17, 1 << 15
"""Signs that are drawn for a run with noise, and elements that are moved at a time: few enough for the cache of a core.
Measured: 4.4 s a run of a vision transformer of 1,300 operations over whole arrays, 1.8 s in blocks; Intel."""
