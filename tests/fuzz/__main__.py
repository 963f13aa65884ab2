"""Draw programs until the time is over, or so many; print what differs, and write the smallest as a script.

    python tests/fuzz --seconds 600 --seed 0
    python tests/fuzz --generator norms --programs 2000

Programs run in processes of their own, a batch each, because a compiled program may end its process. Of every batch
some programs are compiled. Those run again in a second process, which finds compiled programs in the store.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

BATCH = 100
SCRIPT = """# {form}: {said}
# Drawn by: python tests/fuzz --generator {generator} --seed {seed} --programs 1
import sys
sys.path.insert(0, {tests!r})
from fuzz.check import check
from fuzz.programs import Input, Program

program = {program}
print(program.text())
print(check(program))
"""


def drawn(generator: str, seed: int) -> Any:
    """Return a program: of every four that a seed gives, three have one to three things changed."""
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
            Reference(program)
        except (NoProgramError, SyntaxError, NameError, AttributeError):
            continue
        return program


def run_batch(generator: str, first: int, count: int, compiled: float, again: bool) -> None:
    """Check programs; prints a line of JSON for each that was begun, what differs, and how programs were compiled.

    Args:
        again: whether these ran before: only compiled forms run.
    """
    from fuzz.check import COMPILED, COUNTS, FORMS, NoProgramError, check
    from fuzz.near_misses import smallest

    seeds = [(seed, Random(seed).random() < compiled) for seed in range(first, first + count)]
    for seed, is_compiled in seeds:
        if again and not is_compiled:
            continue
        program = drawn(generator, seed)
        plain = [] if again else [form for form in FORMS if form not in COMPILED]
        forms = [*plain, *(COMPILED if is_compiled else [])]
        print(json.dumps({"begun": seed}), flush=True)
        try:
            found = check(program, forms, stored=True)
        except NoProgramError:
            continue
        if found is None:
            continue

        def fails(candidate: Any, form: str = found[0]) -> bool:
            try:
                return check(candidate, [form]) is not None
            except (NoProgramError, SyntaxError, NameError, AttributeError):
                return False

        program = smallest(program, fails)
        form, said = check(program, [found[0]]) or found
        script = SCRIPT.format(form=form, said=said, generator=generator, seed=seed, tests=str(TESTS), program=program)
        print(
            json.dumps({"seed": seed, "form": form, "said": said, "text": program.text(), "script": script}), flush=True
        )
    print(json.dumps({"forms": COUNTS, "compiled": sum(one for _, one in seeds)}), flush=True)


def run_process(generator: str, first: int, count: int, compiled: float, store: str, again: bool) -> dict[str, Any]:
    """Run a batch in a process of its own; returns how many programs it checked, and what it found."""
    command = [
        sys.executable,
        str(TESTS / "fuzz"),
        "--batch",
        generator,
        str(first),
        str(count),
        "--compiled",
        str(compiled),
        *(["--again"] if again else []),
    ]
    env = {**os.environ, "GT_CACHE_DIR": store, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3600)
        out, err, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        out, err, status = str((error.stdout or b"").decode()), "more than 3600 s", -1
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    begun = [one["begun"] for one in said if "begun" in one]
    found = [one for one in said if "said" in one]
    if status:
        last = begun[-1] if begun else first
        what = f"the process ended with {status}: {(err.strip().splitlines() or [''])[-1]}"
        found.append({"seed": last, "form": "process", "said": what, "text": "", "script": f"# {what}\n"})
    counts = next((one for one in said if "forms" in one), {"forms": {}, "compiled": 0})
    return {"generator": generator, "checked": len(begun), "found": found, "again": again, **counts}


def main() -> int:
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
    parser.add_argument("--batch", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        name, first, count = options.batch
        run_batch(name, int(first), int(count), options.compiled, options.again)
        return 0

    names = options.generator or list(GENERATORS)
    begin, checked, found = time.monotonic(), collections.Counter[str](), collections.Counter[str]()
    compiled, forms = collections.Counter[str](), collections.Counter[str]()
    batches = [
        (name, start, min(BATCH, (options.programs or 10**9) - start))
        for start in range(0, options.programs or 10**6, BATCH) for name in names
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as store, concurrent.futures.ThreadPoolExecutor(options.processes) as pool:

        def run(k: int) -> list[dict[str, Any]]:
            name, start, count = batches[k]
            if options.programs is None and time.monotonic() - begin > options.seconds:
                return []
            one = (name, options.seed + start, count, options.compiled, store)
            return [run_process(*one, again) for again in (False, True)[: 1 + (options.compiled > 0)]]

        for results in pool.map(run, range(len(batches))):
            for result in results:
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
        print(f"{name:14}{checked[name]:7} programs{compiled[name]:6} compiled too{found[name]:5} differ")
    for way, count in sorted(forms.items()):
        print(f"{way:28}{count:7} runs")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
