"""Records of what programs have cost and saved."""

from __future__ import annotations

import attrs


@attrs.frozen
class ProgramStats:
    """The ledger of one program. Times are in seconds.

    Attributes:
        signature: exact signature, 32 digits, of which tables and logs show 12. Inputs of other strides, or another
            backend, compile on their own and have a record of their own.
        structural: the signature with sizes and scalars left open.
        ops: names of the operations, in canonical order.
        tier: "interpreted", "compiled", "failed" (the compiler did) or "demoted" (compiled, but slower).
        interpreted_calls, interpreted_seconds, compiled_calls, compiled_seconds: runs, by how they ran.
        compile_seconds: spent in the compiler.
        expected_compile_seconds: what compiling should cost, judged by the compiles so far.
        break_even_calls: compiled calls that pay for the compile; None if it never ran both ways, or if compiling
            does not make it faster.
        saved_seconds: interpreted minus compiled time of the compiled calls, the compile itself not counted; None if it
            was never interpreted.
        reason: why it is "failed" or "demoted", or stays "interpreted" whatever it costs; else empty.
        open_sizes: the sizes that its compiled program leaves open, such as "input 0 dim 0"; it is shared by all
            programs of the structure that differ in these.
        compiling: whether the worker is compiling it.
        library_share: the fraction of its interpreted time that libraries take for matrix products and the like, which
            compiling cannot shorten; None: not measured yet, or there are none.
        origin: who compiled it: "process" (this one), "worker" or "cache" (an earlier run); empty: nobody.
        verdict: all that in words.
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
        """Runs of the program, interpreted or compiled."""
        return self.interpreted_calls + self.compiled_calls

    @property
    def total_seconds(self) -> float:
        """Time spent on the program: interpreting, running compiled, and compiling."""
        return self.interpreted_seconds + self.compiled_seconds + self.compile_seconds


@attrs.frozen
class Totals:
    """Sums over all programs. Times are in seconds.

    Attributes:
        programs: how many there are.
        calls: runs, interpreted or compiled.
        compiles: programs that the compiler finished, in this process or in its worker.
        loaded: programs that were found compiled on disk.
        as_recorded: runs of programs of new sizes, which are in no program's ledger.
        saved_seconds: what the compiled calls saved, the compiles not counted, where it is known.
    """

    programs: int
    calls: int
    compiles: int
    loaded: int
    as_recorded: int
    interpreted_seconds: float
    compiled_seconds: float
    compile_seconds: float
    saved_seconds: float
