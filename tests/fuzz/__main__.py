"""Draw programs until the time is over, or so many; print what differs, and write the smallest as a script.

    python tests/fuzz --seconds 600 --seed 0
    python tests/fuzz --generator norms --programs 2000

Programs run in processes of their own, a batch each, because a compiled program may end its process. A batch is forked
from a process that has imported torch and gtrace. Of every batch some programs are compiled. Those run again in a
second process, which finds compiled programs in the store.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

BATCH = 200
GROUP = 12
"""Programs that are compiled as one: a compiler takes little longer for them than for one of them."""

LIMIT = 3600.0
"""Seconds that a batch may take."""

SCRIPT = """# {form}: {said}
# Drawn by: python tests/fuzz --generator {generator} --seed {seed} --programs 1
import sys
sys.path.insert(0, {tests!r})
from fuzz.check import Reference, check, check_together
from fuzz.programs import Input, Program

program = {program}
print(program.text())
print(check(program))
"""
TOGETHER = """
# it differs beside these, compiled as one program
others = {others}
print(check_together([Reference(one) for one in (program, *others)], {form!r}))
"""


def drawn(generator: str, seed: int) -> Any:
    """Return a program and torch's results: of every four programs that a seed gives, three are changed a little."""
    from fuzz.check import NoProgramError, Reference
    from fuzz.generators import GENERATORS
    from fuzz.near_misses import changed

    r = Random(f"{generator} {seed}")
    while True:
        program = GENERATORS[generator](r)
        for _ in range(r.choice([0, 1, 1, 2, 3])):
            if not program.definitions:
                program = changed(r, program)
        try:
            return program, Reference(program)
        except (NoProgramError, SyntaxError, NameError, AttributeError):
            continue


def report(seed: int, program: Any, found: tuple[str, str], others: Sequence[Any] = ()) -> dict[str, Any]:
    """Return a difference of a program, made as small as it can be, and a script that shows it.

    Args:
        others: programs beside which alone it differs.
    """
    from fuzz.check import NoProgramError, check
    from fuzz.near_misses import smallest

    def fails(candidate: Any) -> bool:
        try:
            return check(candidate, [found[0]]) is not None
        except (NoProgramError, SyntaxError, NameError, AttributeError):
            return False

    form, said = found
    if not others:
        program = smallest(program, fails)
        form, said = check(program, [form]) or found
    script = SCRIPT.format(
        form=form, said=said, generator=program.generator, seed=seed, tests=str(TESTS), program=program
    )
    if others:
        script += TOGETHER.format(others=list(others), form=form)
    return {"seed": seed, "form": form, "said": said, "text": program.text(), "script": script}


def compiled_groups(chosen: Sequence[tuple[int, Any]], again: bool) -> Iterator[dict[str, Any]]:
    """Compile programs, so many as one program, and one by one where that raises or differs; yields what differs.

    Args:
        chosen: seeds, and torch's results of their programs.
        again: whether these ran in another process, whose compiled programs are in the store.
    """
    from fuzz.check import NoProgramError, check, check_together, takes_inductor, traceable

    def apart(member: tuple[int, Any], form: str, stored: bool) -> dict[str, Any] | None:
        try:
            found = check(member[1].program, [form], stored, member[1])
        except NoProgramError:
            return None
        return None if found is None else report(member[0], member[1].program, found)

    # what the C++ compiler alone does not compile would have its neighbours compiled by Inductor
    ways: dict[tuple[str, bool], list[tuple[int, Any]]] = collections.defaultdict(list)
    for seed, reference in chosen:
        print(json.dumps({"compiling": [seed]}), flush=True)
        natively, traced = not takes_inductor(reference.program), traceable(reference.program)
        if traced:
            ways["jitted", natively].append((seed, reference))
            ways["inductor", False].append((seed, reference))
        if not again:
            ways["hot", natively].append((seed, reference))
    for (form, _), members in ways.items():
        for start in range(0, len(members), GROUP):
            group = members[start : start + GROUP]
            print(json.dumps({"compiling": [seed for seed, _ in group]}), flush=True)
            single, suspects, raised = len(group) == 1, [0], ""
            if not single:
                suspects, raised = check_together([reference for _, reference in group], form, True)
            for k in range(len(group)) if raised else suspects:
                seed, reference = group[k]
                found = apart(group[k], form, single)
                if found is not None:
                    yield found
                elif not raised and not single:
                    others = [one.program for _, one in group if one is not reference]
                    yield report(seed, reference.program, (form, "beside others alone"), others)


def run_batch(generator: str, first: int, count: int, compiled: float, again: bool) -> None:
    """Check programs; prints a line of JSON for each that was begun, what differs, and how programs were compiled.

    Args:
        again: whether these ran before: only compiled forms run.
    """
    from fuzz.check import COMPILED, COUNTS, FORMS, NoProgramError, check

    plain, chosen = [form for form in FORMS if form not in COMPILED], []
    for seed in range(first, first + count):
        is_compiled = Random(seed).random() < compiled
        if again and not is_compiled:
            continue
        print(json.dumps({"begun": seed}), flush=True)
        program, reference = drawn(generator, seed)
        try:
            found = None if again else check(program, plain, reference=reference)
        except NoProgramError:
            continue
        if found is not None:
            print(json.dumps(report(seed, program, found)), flush=True)
        elif is_compiled:
            chosen.append((seed, reference))
    for one in compiled_groups(chosen, again):
        print(json.dumps(one), flush=True)
    print(json.dumps({"forms": COUNTS, "compiled": len(chosen)}), flush=True)


def _redirected(path: str, *batch: Any) -> None:
    """Run a batch with its output in a file, in a forked process."""
    for stream, name in ((1, f"{path}.out"), (2, f"{path}.err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    run_batch(*batch)
    sys.stdout.flush()


def outcome(path: str, generator: str, first: int, again: bool, status: int | None) -> dict[str, Any]:
    """Return how many programs a batch checked, and what it found.

    Args:
        status: how its process ended; None: it was stopped.
    """
    out, err = (Path(f"{path}.{name}").read_text(errors="replace") for name in ("out", "err"))
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    begun = [one["begun"] for one in said if "begun" in one]
    found = [one for one in said if "said" in one]
    if status != 0:
        ended = f"more than {LIMIT:.0f} s" if status is None else f"the process ended with {status}"
        last = next((one for one in reversed(said) if "begun" in one or "compiling" in one), {"begun": first})
        what = f"{ended} at {last}: {(err.strip().splitlines() or [''])[-1]}"
        seed = begun[-1] if begun else first
        found.append({"seed": seed, "form": "process", "said": what, "text": "", "script": f"# {what}\n"})
    counts = next((one for one in said if "forms" in one), {"forms": {}, "compiled": 0})
    return {"generator": generator, "checked": len(begun), "found": found, "again": again, **counts}


def results(
    batches: Iterator[tuple[str, int, int]], processes: int, compiled: float, end: float, folder: str
) -> Iterator[dict[str, Any]]:
    """Run batches, each in a process and some in a second one, so many at a time; yields what each found.

    Args:
        end: no batch is begun after this time.
    """
    context = multiprocessing.get_context("fork")
    running: dict[Any, tuple[Any, str, tuple[str, int, int], bool, float]] = {}
    waiting: list[tuple[tuple[str, int, int], bool]] = []
    for number in itertools.count():
        while len(running) < processes:
            if waiting:
                batch, again = waiting.pop()
            else:
                found = next(batches, None) if time.monotonic() < end else None
                if found is None:
                    break
                batch, again = found, False
            path = os.path.join(folder, f"batch{number}-{len(running)}-{again}")
            process = context.Process(target=_redirected, args=(path, *batch, compiled, again))
            process.start()
            running[process.sentinel] = process, path, batch, again, time.monotonic() + LIMIT
        if not running:
            return
        multiprocessing.connection.wait(list(running), 10.0)
        for sentinel, (process, path, batch, again, latest) in list(running.items()):
            late = time.monotonic() > latest
            if process.is_alive() and not late:
                continue
            if late:
                process.kill()
            process.join()
            del running[sentinel]
            yield outcome(path, batch[0], batch[1], again, None if late else process.exitcode)
            if compiled and not again:
                waiting.append((batch, True))


def main() -> int:
    store = tempfile.TemporaryDirectory()
    os.environ |= {"GT_CACHE_DIR": store.name, "OMP_NUM_THREADS": "1"}  # read while gtrace and torch are imported
    from fuzz.generators import GENERATORS

    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long new batches are begun")
    parser.add_argument("--programs", type=int, help="so many of each generator, in place of the time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--generator", action="append", choices=sorted(GENERATORS), help="this one only; may be repeated"
    )
    parser.add_argument("--compiled", type=float, default=0.05, help="the share of programs that are compiled too")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="the folder for scripts")
    options = parser.parse_args()

    import fuzz.check  # noqa: F401 - imports torch and gtrace once, for all batches

    names = options.generator or list(GENERATORS)
    begin, checked, found = time.monotonic(), collections.Counter[str](), collections.Counter[str]()
    compiled, forms = collections.Counter[str](), collections.Counter[str]()
    most = options.programs or 10**6
    batches = (
        (name, options.seed + start, min(BATCH, most - start)) for start in range(0, most, BATCH) for name in names
    )
    end = float("inf") if options.programs else begin + options.seconds
    with store, tempfile.TemporaryDirectory() as folder:
        for result in results(batches, options.processes, options.compiled, end, folder):
            if not result["again"]:
                checked[result["generator"]] += result["checked"]
                compiled[result["generator"]] += result["compiled"]
            process = "second process" if result["again"] else "first process"
            forms.update({f"{process}: {way}": count for way, count in result["forms"].items()})
            for one in result["found"]:
                found[result["generator"]] += 1
                options.out.mkdir(parents=True, exist_ok=True)
                path = options.out / f"{result['generator']}-{one['seed']}-{one['form']}.py"
                path.write_text(one["script"], encoding="utf-8")
                print(f"{path}\n{one['form']}: {one['said']}\n{one['text']}", flush=True)
    print(f"seeds from {options.seed}, {time.monotonic() - begin:.0f} s")
    for name in names:
        print(f"{name:16}{checked[name]:7} programs{compiled[name]:6} compiled too{found[name]:5} differ")
    for way, count in sorted(forms.items()):
        print(f"{way:28}{count:7} runs")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
