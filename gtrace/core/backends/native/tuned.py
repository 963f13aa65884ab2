"""Numbers that native code was tuned by. Each says what measured it and where, or why it was chosen."""

NORM_COST = 8
"""Additions that an element of a layer norm takes.
Chosen: the operations of its formula."""

NORM_GRADIENT_COST = 24
"""Additions that an element of a layer norm's gradient takes.
Chosen: the operations of its formula."""

EXPONENTIAL_COST = 12
"""Additions that a score of attention takes beside its products.
Chosen: the operations of the exponential's polynomial."""

NORM_COLUMNS = 64
"""Columns of a norm's gradient that are summed together.
Chosen: a few vectors of each processor."""

MOST_SCORES = 1 << 14
"""Scores of a head, at most, that are written and read again.
Chosen: 64 KiB of float32; torch's kernel does not write them."""

MAX_EINSUM = 1 << 16
"""Multiplications of an einsum, above which torch is faster: ours is plain loops.
Measured: products in tiles are ten times as fast as plain loops; processor not noted."""

SUMMED_ROWS = 16
"""Rows that are added one by one to a sum over leading axes, and sums of as many rows, and so on.
Chosen: as many as torch adds one by one. With 64, errors are up to six times those of torch."""

POLL_AFTER = 1 << 18
"""Additions, about, between two looks at the clock.
Chosen: a fraction of a millisecond, and a look takes 30 ns."""

MANY_NESTS = 64
"""Loop nests in the body of a loop from which on each is a function of its own.
Measured: a body of 800 operations takes g++ 3 s, as one function 21, and its steps take as long; AMD EPYC."""

SHORT_PART = 1 << 15
"""Additions in a part of a line of a loop that threads share, at least. They wait for the next line.
Measured: a loop of 64 steps of an LSTM, width 128, with two threads 1.1 ms, with one 1.8; processor not noted."""

LONG_PART = 1 << 17
"""The same for straight-line operations, for which threads have to be started.
Measured: the operations behind that loop, with two threads 1.5 ms, with one 2.9; processor not noted."""

MOST_PARTS = 64
"""Parts of one line, at most.
Chosen: as many as large processors have cores."""

GRAIN = 64
"""Elements, of which the parts of a line have a multiple.
Chosen: more than a vector has, and a line of the cache."""

SQUARE = 16
"""Rows and columns of a block of a matrix that is transposed.
Measured: a transposed elementwise result takes 10 times Inductor's time, without blocks 25; processor not noted."""
