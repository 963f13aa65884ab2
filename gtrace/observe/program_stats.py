"""Records of the costs and savings of programs."""

from __future__ import annotations

import attrs


@attrs.frozen
class ProgramStats:
    """The ledger of one program. Times are in seconds.

    Attributes:
        signature: exact signature, 32 digits; tables and logs show 12. Inputs with other strides, or another backend,
            have their own compiled code and record.
        structural: the signature without sizes and scalars.
        ops: names of the operations, in canonical order.
        tier: "interpreted", "compiled", "failed" (the compiler failed) or "demoted" (compiled, but slower).
        interpreted_calls, interpreted_seconds, compiled_calls, compiled_seconds: runs of each kind.
        compile_seconds: time spent in the compiler.
        expected_compile_seconds: the expected compile time, from earlier compiles.
        break_even_calls: compiled calls that pay for the compile; None if it never ran both ways, or compiling does not
            make it faster.
        saved_seconds: interpreted minus compiled time of the compiled calls, without the compile; None if it was never
            interpreted.
        reason: why it is "failed" or "demoted", or always stays "interpreted"; otherwise empty.
        open_sizes: the sizes that its compiled code leaves open, such as "input 0 dim 0". All programs of the structure
            that differ only there share the code.
        compiling: whether the worker is compiling it.
        library_share: the fraction of its interpreted time in library calls such as matmuls, which compiling cannot
            shorten; None if there are none, or they were not measured yet.
        origin: where it was compiled: "process" (this one), "worker" or "cache" (an earlier run); empty if nowhere.
        verdict: a summary in words.
    """

    signature: str
    structural: str
    ops: tuple[str, ...]
    tier: str
    interpreted_calls: int
    interpreted_seconds: float
    compiled_calls: int
    compiled_seconds: float
    compile_seconds: float
    expected_compile_seconds: float
    break_even_calls: int | None
    saved_seconds: float | None
    reason: str
    open_sizes: tuple[str, ...] = ()
    compiling: bool = False
    origin: str = ""
    library_share: float | None = None
    verdict: str = ""

    @property
    def calls(self) -> int:
        """The number of runs, interpreted or compiled."""
        return self.interpreted_calls + self.compiled_calls

    @property
    def total_seconds(self) -> float:
        """Time spent on the program: interpreted runs, compiled runs, and compiling."""
        return self.interpreted_seconds + self.compiled_seconds + self.compile_seconds


@attrs.frozen
class Totals:
    """Sums over all programs. Times are in seconds.

    Attributes:
        programs: the number of programs.
        calls: runs, interpreted or compiled.
        compiles: compilations that ended in this process or its worker.
        loaded: compiled programs that were found on disk.
        as_recorded: runs of new sizes without preparation, which no ledger counts.
        by_open_code: runs of new sizes by code for open sizes, without preparation; no ledger counts them either.
        compared: calls that were compared with the recorded program.
        disagreed: those that gave other results.
        not_compared: forms that are used without a comparison.
        saved_seconds: known savings of compiled calls, without the compiles.
    """

    programs: int
    calls: int
    compiles: int
    loaded: int
    as_recorded: int
    by_open_code: int
    compared: int
    disagreed: int
    not_compared: int
    interpreted_seconds: float
    compiled_seconds: float
    compile_seconds: float
    saved_seconds: float
