"""Numbers that Inductor's programs were tuned by. Each says what measured it and where, or why it was chosen."""

IMPORT_SECONDS = 4.0
"""Seconds that the first compile of a process takes more, as it imports Inductor.
Measured: first compiles in fresh processes, 3 to 5 s; processor not noted."""

COLD_SECONDS = 8.0
"""Seconds that the first compile on a machine takes more, as it compiles the header of programs.
Measured: first compiles with empty caches; processor not noted."""

LEAST_DIVIDED_KERNEL = 8192
"""Elements of a kernel that is divided among threads, at least.
Measured: an attention block (4 x 16 x 64) 34.1 us, 43.1 with every kernel divided; processor not noted."""

LEAST_CHUNK = 512
"""Elements of a kernel for each thread, at least.
Chosen: Inductor's own number."""

LEAST_MOVED = 1 << 14
"""Elements of chosen or added rows from which on a call of our own is worth it.
Chosen: so many take longer than the call, which is apart from the operations around it."""

LEAST_ROW_BYTES = 64
"""Bytes of a row, from which on rows and not elements are what is moved.
Chosen: a line of the cache."""

LEAST_REDUCED_ROWS = 32
"""Rows from which on several reductions of a matrix are one pass.
Chosen: with fewer, starting and joining the tiles takes as long."""

MOST_COLUMNS = 1 << 14
"""Columns of such a matrix, at most; each has a sum of its own in each part of the matrix.
Chosen: 128 KiB of sums for a part, which the second cache holds."""

MAX_WINDOW = 16
"""Elements of a window of pooling, at most: the loop over them is unrolled.
Chosen: windows of up to 4 x 4."""

LEAST_POOLED_CHANNELS = 8
"""Channels from which on the loop over them is worth vectors.
Chosen: a vector of AVX2."""
