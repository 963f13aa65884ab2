"""Numbers that schedules were tuned by. Each says what measured it and where, or why it was chosen."""

MIN_OPS = 3
"""Operations of a part from which on it is compiled.
Chosen: with fewer there is nothing to fuse."""

MIN_NATIVE_OPS = 8
"""The same for parts that the C++ compiler alone compiles.
Measured: a call of a native program takes 1.5 us and more, a call of torch 2; processor not noted."""

MIN_SHARE = 0.05
"""Share of all work that compiling a part beside native loops saves, at least.
Chosen: Inductor takes ten times as long for a part as the C++ compiler for a loop."""

MAX_SHARE = 0.7
"""Share of the loops' work that parts beside them may take and be compiled without Inductor, for one thread.
Measured: first calls of PPO 8.8 to 1.1 s, and its calls 5.6 to 4.5 ms; processor not noted."""

MAX_PROLOGUE = 1 << 16
"""Additions of the operations before a loop, at most, that become part of its function.
Measured: each constant before a loop took 2 to 5 us as a call of torch; processor not noted."""

MAX_OPS = 1000
"""Operations of a part, above which it is cut where the fewest bytes cross.
Measured: a GPT of 1,159 operations compiles in 7.5 s in parts, and in 18 s as a whole; processor not noted."""

INTERPRETED_CALL = 2000
"""Additions that take as long as the interpreter does for an operation, however small it is.
Chosen: two microseconds, at an addition of arrays in memory in a nanosecond."""

PRODUCTS = 16
"""Multiplications of a product of matrices that take as long as one addition of elements.
Chosen: about what a core multiplies in the time in which memory gives it an element."""

LONG_STEP = 1_000_000
"""Additions of a step of a loop, above which calls of its compiled body cost little beside it.
Measured: a call takes 10 us; processor not noted."""

LONG_NATIVE_STEP = 8_000_000
"""Additions of a step, above which a loop is not one native function: libraries are faster for such products.
Measured: an LSTM of width 256 and batch 128, 400 ms in place of 470; processor not noted."""

LONG_NATIVE_PROGRAM = 1 << 26
"""The same for a program without loops: the calls of longer ones cost little.
Measured: kernels of a million elements take 0.5 to 1.0 of the time of Inductor's; processor not noted."""

SMALL_OPERATION = 1 << 20
"""Bytes that an operation reads and writes, up to which compiling saves all of its time.
Measured: 0.7 to 1.0 of the time beside products for a transformer of width 128, 256 rows; processor not noted."""

LARGE_OPERATION = 1 << 22
"""The same, from which on compiling saves `SAVED_OF_LARGE`.
Measured: see `SAVED_OF_LARGE`; processor not noted."""

SAVED_OF_LARGE = 0.4
"""Share of the time of large operations that compiling saves.
Measured: 0.3 for a transformer of width 256 and 1,024 rows, 0.4 for convolutions of 64 images
of 32 x 32; processor not noted."""

MAX_EXPORTED_OPS = 1000
"""Operations that the steps of an exported loop may become.
Chosen: `MAX_OPS`, what is compiled in one piece."""

MAX_JOINED = 2**20
"""Bytes of an array, at most, that is summed over processes together with others. Joining copies it.
Chosen: copies of as much take a tenth of a millisecond."""

BUCKET = 25 * 2**20
"""Bytes that are summed over processes by one call.
Chosen: as in torch's DistributedDataParallel."""

LONG_LOOP_SECONDS = 0.1
"""Of an interpreted loop, until it goes on in blocks of steps, each a program.
Chosen: preparing a block takes a part of that, and compiling one ten times as long."""

BLOCK_SECONDS = 0.05
"""Seconds of an interpreted block, about; a step may take longer.
Chosen: a thousand times what a call costs. A trial has at least six of them, and a comparison one."""
