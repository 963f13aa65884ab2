"""Numbers that passes were tuned by. Each says what measured it and where, or why it was chosen."""

LEAST_CUT_NODES = 100
"""Operations of a program from which on it is cut where it repeats.
Chosen: so many operations take as long to compile as a program takes that has none."""

LEAST_SAVED = 32
"""Operations that a run of repetitions saves, at least.
Chosen: one part of the smallest size."""

MAX_PERIOD = 2000
"""Operations of one repetition, at most. The search takes time in proportion.
Measured: 50 ms to find and cut the 2,070 operations of a transformer's step; processor not noted."""

PART_NODES = 32
"""Operations of a part, at least, if its arrays are not small.
Measured: the transformer's step, 36 calls of 11 programs, as fast as the whole program; processor not noted."""

PART_NODES_OF_SMALL_ARRAYS = 64
"""The same for parts that write less than `LARGE_PART_BYTES`.
Measured: of a model of small layers 472 of 940 operations are left to compile, by 128 772; processor not noted."""

PART_NODES_OF_TINY_ARRAYS = 128
"""The same for parts that write less than `TINY_BYTES` an operation.
Measured: 200 operations on four elements take 4.7 us as one program, 26.6 as four; processor not noted."""

LARGE_PART_BYTES = 1 << 20
"""Bytes that the operations of a part write, if its arrays are not small.
Chosen: as many as take longer to write than the call of a part takes."""

TINY_BYTES = 1 << 6
"""Bytes that an operation of a part writes, on average: below, a part of them takes less than its call.
Measured: 200 operations on four elements take 4.7 us as one program, 26.6 as four; processor not noted."""

LEAST_SCORES = 1 << 12
"""Scores from which on torch's fused attention is worth its call.
Measured: four layers of 64 places, 1.34 of torch's step written out, 1.25 by the kernel; processor not noted."""

LEAST_KEYS = 1024
"""Keys from which on it is faster although there is a single head, whose gradient one thread computes.
Measured: 0.2 to 0.5 of two products and a softmax from here on, 1.0 to 1.5 below; processor not noted."""

LEAST_DRAWN = 256
"""Elements of a draw from which on it is a program of its own.
Measured: interpreted, the cipher is 120 calls of NumPy, and as a program one; processor not noted."""

LEAST_NORM_CHANNELS = 16
"""Channels from which on torch's kernel for batch norms with the channels last is faster than elementary operations.
Measured: 100,000 rows of 8 channels 3.0 ms and 2.0 written out, of 16 channels 2.3 and 5.2; processor not noted."""

MOST_KNOWN = 1 << 25
"""Elements of a mask, at most, that is computed to see what it is.
Chosen: 32 MiB of booleans, for the scores of 5,792 places."""

LEAST_IMAGE = 1 << 14
"""Elements of the images from which on a convolution takes them with the channels last.
Chosen: a call for fewer takes a few microseconds, which a copy would only add to."""
