"""Numbers that loops run from Python were tuned by. Each says what measured it and where, or why it was chosen."""

COPIED = 2**15
"""Bytes of an output of a step from which on it is copied to its place at each step, while it is in cache.
Measured: a training loop with large outputs, 49 to 33 ms together with other changes; processor not noted."""

MAX_HOISTED = 128 * 2**20
"""Bytes of the values that are computed for all steps at once, at most; the work of others stays in the loop.
Chosen: a small part of the memory of today's machines."""

VIEWS = 1024
"""Steps whose inputs become views at once.
Chosen: a view takes half a kilobyte, and a loop may have millions of steps, most of which may run compiled."""
