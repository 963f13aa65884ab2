"""Named rewrites, kernels, forms of a program and mended faults, which can be switched off.

``GT_DISABLE=norm_fusion,cse`` switches off two, in this process and in its worker; ``all`` switches off all.
Switching one off costs speed. For a mended fault it costs digits; those switches are for tests.
`gtrace bisect` finds the mechanism that causes a wrong result.

A mechanism checks whether it is `on`, and calls `used` when it changes something.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Iterable

import attrs

from gtrace.core.base.config import config
from gtrace.core.base.errors import ConfigError, ConfigWarning, message
from gtrace.core.base.plain_files import Log

_LOG = config.current.mechanism_log
"""Read once: kernels of the interpreter call `used` at each call."""


@attrs.define(eq=False)
class Mechanism:
    """One mechanism.

    Attributes:
        name: what GT_DISABLE calls it.
        group: its group in the table of the documentation.
        what: a phrase for what it does.
        seen: the latest torch that is known to have the fault which it mends; empty if it mends none.
        issues: the numbers of the fault's issues at pytorch/pytorch.
        on: whether this process uses it.
    """

    name: str
    group: str
    what: str
    seen: str = ""
    issues: tuple[int, ...] = ()
    on: bool = True
    _noted: bool = attrs.field(default=False, init=False)

    @property
    def wanted(self) -> bool:
        """Whether GT_MECHANISM_LOG still lacks its name."""
        return _LOG is not None and not self._noted

    def used(self) -> None:
        """Note that it changed a program. The log of GT_MECHANISM_LOG gets the name once a process."""
        if _LOG is not None and not self._noted:
            self._noted = True
            # one write of a short line, so that lines of several processes do not mix
            try:
                with contextlib.closing(Log(_LOG, 0o600)) as log:
                    log.write(f"{self.name}\n")
            except OSError as error:  # the program's results matter more than their log
                text = f"GT_MECHANISM_LOG={_LOG} lacks {self.name}: {error}"
                warnings.warn(text, ConfigWarning, stacklevel=2)


MECHANISMS: dict[str, Mechanism] = {}
"""All mechanisms by name, in the order in which a program meets them."""


def _mechanism(name: str, group: str, what: str, seen: str = "", *issues: int) -> Mechanism:
    made = MECHANISMS[name] = Mechanism(name, group, what, seen, issues)
    return made


# changes to the whole process; see docs/process.md
_PROCESS = "Process"
FROZEN_IMPORTS = _mechanism("frozen_imports", _PROCESS, "what was imported is left out of garbage collections")
KEPT_MEMORY = _mechanism("kept_memory", _PROCESS, "freed memory is kept for the next call, up to 1 GiB")
SHARED_CORES = _mechanism("shared_cores", _PROCESS, "the worker has a core, and pauses once that has cost too much")

# what is recorded
_RECORDING = "Recording"
PERIODS = _mechanism(
    "periods", _RECORDING, "a loop that reads no value is cut into programs where its operations repeat"
)
ROW_VIEWS = _mechanism("row_views", _RECORDING, "successive rows of a known array are a view, which is not recorded")
CODE_MOTION = _mechanism(
    "code_motion", _RECORDING, "what a scan computes for each step alone is computed for all at once"
)
OWN_TRACER = _mechanism("own_tracer", _RECORDING, "functions and rules of torch are traced by a tracer of ours")
OPERATOR_RULES = _mechanism("operator_rules", _RECORDING, "layers and solvers of torch have rules of ours")

# forms of a program
_FORM = "Forms"
AS_RECORDED = _mechanism("as_recorded", _FORM, "first calls, and those of new sizes, run as they were recorded")
TEMPLATES = _mechanism("templates", _FORM, "library functions that were recorded once are recorded again in one go")
OPEN_RULES = _mechanism(
    "open_rules",
    _FORM,
    "functions and derivative rules that were recorded once are recorded at other sizes",
)
LIFTED_SCALARS = _mechanism("lifted_scalars", _FORM, "numbers that change are inputs of one program, not constants")
DONATION = _mechanism("donation", _FORM, "programs write over inputs that nobody needs any more")
DRAWS_APART = _mechanism("draws_apart", _FORM, "random samples are programs of their own")
REPEATED_PARTS = _mechanism("repeated_parts", _FORM, "repeated structure, such as layers, is cut into equal programs")
OPEN_SIZES = _mechanism("open_sizes", _FORM, "one compiled program serves many sizes")
NATIVE_PROGRAMS = _mechanism("native_programs", _FORM, "short programs are one C++ function")
NATIVE_LOOPS = _mechanism("native_loops", _FORM, "loops with short steps are one C++ function")
LOOPS_IN_BLOCKS = _mechanism(
    "loops_in_blocks", _FORM, "a loop that takes long in one call goes on as a program, some steps at a time"
)
PARTLY_COMPILED = _mechanism("partly_compiled", _FORM, "compiled parts of a program run while others are compiled")
OVERTAKEN = _mechanism("overtaken", _FORM, "an interpreted call ends, and is made anew, once faster code is there")
REVIEWS = _mechanism("reviews", _FORM, "the form that lost a trial is tried again once the other one has become slower")
INDUCTOR = _mechanism("inductor", _FORM, "longer programs are compiled by Inductor")
COMPARISONS = _mechanism(
    "comparisons", _FORM, "first calls of a form, and some later ones, are compared with the program as recorded"
)
STORE = _mechanism("store", _FORM, "compiled programs of earlier processes are loaded")

# passes over every program
_PASS = "Passes"
FOLD = _mechanism("fold", _PASS, "uniform arrays and numbers are computed when a program is prepared")
JOIN_PARTS = _mechanism("join_parts", _PASS, "a sum of arrays that are zero but for a part is one concatenation")
ORDER_OPERANDS = _mechanism("order_operands", _PASS, "operands of commutative operations are sorted")
CSE = _mechanism("cse", _PASS, "equal operations are computed once")
MERGE_BATCHES = _mechanism("merge_batches", _PASS, "matmuls that share a matrix, or are summed, are one matmul")
MOVE_TRANSPOSES = _mechanism("move_transposes", _PASS, "transpositions of matmuls move to their operands")
MERGE_CALLS = _mechanism("merge_calls", _PASS, "two loops of which one extends the other are one loop")
NARROW_CALLS = _mechanism("narrow_calls", _PASS, "results of loops and branches that nobody reads are dropped")

# fusions before a program is cut
_FUSION = "Fusions"
NAMED_CALLS = _mechanism("named_calls", _FUSION, "what gt.nn records by name is torch's kernels")
EINSUM_MATMUL = _mechanism("einsum_matmul", _FUSION, "an einsum of two matrices is a matmul")
NORM_FUSION = _mechanism("norm_fusion", _FUSION, "handwritten norms and their gradients are torch's kernels")
ATTENTION_FUSION = _mechanism("attention_fusion", _FUSION, "handwritten attention and its gradient are torch's kernels")

# the interpreter
_INTERPRETER = "Interpreter"
DIRECT_CALLS = _mechanism(
    "direct_calls", _INTERPRETER, "operations call shorter functions of torch where types allow it"
)
ROW_INDEXING = _mechanism(
    "row_indexing", _INTERPRETER, "rows at integer places are read and added by torch's kernels for rows"
)
BATCHED_MATMUL = _mechanism("batched_matmul", _INTERPRETER, "matmuls of several batch axes copy no transposed matrix")
MATMUL_LIBRARY = _mechanism("matmul_library", _INTERPRETER, "oneDNN computes large matmuls where it is faster than MKL")
CHANNELS_LAST = _mechanism("channels_last", _INTERPRETER, "convolutions of large images have the channels last")
LSTM_KERNEL = _mechanism("lstm_kernel", _INTERPRETER, "a layer of torch.nn.LSTM is oneDNN's")

# Inductor
_INDUCTOR = "Inductor"
ROW_KERNELS = _mechanism(
    "row_kernels", _INDUCTOR, "rows at integer places, and reductions of a matrix, are C++ of ours"
)
POOLING_KERNEL = _mechanism("pooling_kernel", _INDUCTOR, "the gradient of max pooling is C++ of ours")
SHARED_BODIES = _mechanism("shared_bodies", _INDUCTOR, "repeated expressions of a kernel are removed early")
SHORT_BUILD = _mechanism("short_build", _INDUCTOR, "a library is built without AOTInductor's model")

# mended faults of libraries; tests/test_mended_faults.py fails once torch has mended one
_MENDED = "Mended faults"
LONG_SUMS = _mechanism("long_sums", _MENDED, "a matmul with few, long sums is computed in blocks", "2.13")
ACCURATE_FUNCTIONS = _mechanism(
    "accurate_functions",
    _MENDED,
    "functions that Inductor computes badly are made of others",
    "2.13",
    183763,
    189803,
    197089,
    198183,
)
DOUBLE_SUMS = _mechanism("double_sums", _MENDED, "sums and means of floats are added as float64", "2.13")
SMALL_INTEGERS = _mechanism(
    "small_integers", _MENDED, "integers of 8 and 16 bits are computed as int32, and wrap", "2.13", 187018, 190764
)
SHORT_FLOATS = _mechanism(
    "short_floats",
    _MENDED,
    "numbers and results of 16 bits are rounded where torch rounds them",
    "2.13",
    181568,
    182131,
    185517,
    186875,
)
HELD_VALUES = _mechanism("held_values", _MENDED, "a value that is compared is computed once", "2.13", 186799, 195214)
CEIL_MODE_POOLING = _mechanism(
    "ceil_mode_pooling", _MENDED, "gradients of average pooling with windows that overhang are torch's", "2.13", 198119
)
REDUCTION_TILING = _mechanism("reduction_tiling", _MENDED, "reductions are vectorized along one axis", "2.13", 196681)
EXTREME_PLACES = _mechanism(
    "extreme_places", _MENDED, "places of extremes count along the reduced axes", "2.13", 197434
)
NEAREST_BY_SCALES = _mechanism(
    "nearest_by_scales", _MENDED, "nearest neighbours by scales are interpreted", "2.13", 175154, 198201
)


def _switch_off(text: str, known: Iterable[str]) -> None:
    for name in filter(None, map(str.strip, text.split(","))):
        if name == "all":
            for one in MECHANISMS.values():
                one.on = False
        elif name in MECHANISMS:
            MECHANISMS[name].on = False
        else:
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"Did you mean {near[0]}?" if near else "gtrace bisect --list prints the names."
            raise ConfigError(message("GT_DISABLE", "names of mechanisms", repr(name), fix))


_switch_off(config.current.disable or "", MECHANISMS)


def switched_off() -> str:
    """Return the names that are off, as part of the key of compiled code; empty if none is."""
    return ",".join(sorted(one.name for one in MECHANISMS.values() if not one.on))
