"""JAX's own tests on gtrace, in four forms; writes docs/jax-tests.md.

    python tests/jax_suite/run.py --source PATH [FILE ...] [--forms interpreted x64] [--seconds N] [--only REGEX]

PATH is a checkout of JAX at the tag jax-v0.10.2, which has tests/ and jax/_src/. FILE is a file of tests/ without its
suffix; without any, all of `FILES` run. Rows go to build/jax-tests/FORM/FILE.jsonl, and a later run goes on where they
end; `--anew` removes them first. It ends with 1 if a failure has no cause in causes.yaml. With `--on-jax PYTHON` the
tests run on JAX too, to know which of them pass there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import page

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "jax-tests"
PACKAGES = ("absl-py", "ml_dtypes", "opt_einsum", "mpmath")
"""What JAX's tests import beside JAX, and gtrace does not need."""

TAG = "jax-v0.10.2"
FILES = (
    "array_test", "checkify_test", "custom_api_test", "dtypes_test", "fft_test", "image_test", "jax_numpy_error_test",
    "jet_test", "key_reuse_test", "lax_autodiff_test", "lax_numpy_einsum_test", "lax_numpy_indexing_test",
    "lax_numpy_operators_test", "lax_numpy_reducers_test", "lax_numpy_test", "lax_numpy_ufuncs_test",
    "lax_numpy_vectorize_test", "lax_test", "nn_test", "ode_test", "optimizers_test", "polynomial_test", "random_test",
    "scipy_signal_test", "stax_test", "tree_util_test",
)  # fmt: skip
"""The files that run when none is named: those about public functions of one process."""

FORMS: dict[str, dict[str, str]] = {
    "interpreted": {"GT_DETERMINISTIC": "1", "GT_AUTO_COMPILE": "0", "GT_CACHE_SIZE": "0"},
    "x64": {"GT_DETERMINISTIC": "1", "GT_AUTO_COMPILE": "0", "GT_CACHE_SIZE": "0"},
    "compiled": {"GT_JIT_WAIT": "30", "GT_COMPILE_AFTER": "0"},
    "second process": {"GT_JIT_WAIT": "30", "GT_COMPILE_AFTER": "0"},
}
"""The forms, with what each sets. The last one starts with the store that the one before has left."""

CRASHES = 30
"""How many crashes of a file are survived."""


def packages(build: Path) -> Path:
    """Install what the tests import into a folder of its own, once, and return it."""
    folder = build / "packages"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PACKAGES]
        subprocess.run(command, check=True)
    return folder


def run_file(name: str, form: str, args: argparse.Namespace) -> Path:
    """Run a file in a form; returns the file of rows."""
    on_jax = form == "jax"
    out = args.build / form.replace(" ", "-") / f"{name}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    if args.anew:
        out.unlink(missing_ok=True)
    python = args.on_jax if on_jax else sys.executable
    env = {**os.environ, **FORMS.get(form, {}), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = os.pathsep.join([str(packages(args.build)), *filter(None, [env.get("PYTHONPATH")])])
    env.setdefault("JAX_NUM_GENERATED_CASES", "10")
    if form in ("compiled", "second process"):
        env["GT_CACHE_DIR"] = str(args.build / "store")
    command = [python, str(HERE / "child.py"), str(args.source), name, str(out), "--only", args.only]
    command += ["--x64"] * (form == "x64") + ["--on-jax"] * on_jax + ["--most", str(args.most)] * bool(args.most)
    begin, now = time.monotonic(), out.with_suffix(".now")
    with out.with_suffix(".log").open("a") as log:
        for _ in range(CRASHES):
            left = args.seconds - (time.monotonic() - begin)
            now.unlink(missing_ok=True)
            try:
                subprocess.run([*command, "--seconds", str(left)], env=env, stdout=log, stderr=log, timeout=left + 150)
            except subprocess.TimeoutExpired:
                print(f"{name}: the process did not end in time", flush=True)
            if not now.exists():
                break
            row = {"test": now.read_text("utf-8"), "outcome": "failed", "kind": "f", "error": "crash", "text": "",
                   "places": [], "seconds": 0.0}  # fmt: skip
            with out.open("a", encoding="utf-8") as rows:
                rows.write(json.dumps(row) + "\n")
    return out


def source_of(path: str | None) -> Path:
    """Return the checkout.

    Raises:
        SystemExit: there is none.
    """
    source = Path(path) if path else None
    if source is None or not (source / "jax" / "_src" / "test_util.py").is_file() or not (source / "tests").is_dir():
        raise SystemExit(
            f"[jax-tests] expected a checkout of JAX, got {path or 'none'}. The project does not contain JAX's "
            f"tests. Clone jax-ml/jax at the tag {TAG} (git clone --depth 1 --branch {TAG}), and call "
            "make jax-tests JAX_SOURCE=PATH."
        )
    return source.resolve()


def main() -> None:
    """Run what the command line asks for, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="*")
    parser.add_argument("--source")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--on-jax", default="")
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--page", action="store_true", help="write docs/jax-tests.md from the rows that there are")
    args = parser.parse_args()
    unknown: list[dict[str, Any]] = []
    if not args.page:
        args.source = source_of(args.source)
        for form in [*args.forms, *["jax"] * bool(args.on_jax)]:
            for name in args.file or FILES:
                begin = time.monotonic()
                found = page.Outcomes(run_file(name, form, args))
                unknown += [r for r in found.failed if page.cause_of(r) is page.UNKNOWN]
                print(f"{form:15} {name:26} {time.monotonic() - begin:4.0f} s  {found}", flush=True)
    if args.page or not (args.file or args.only or args.most):
        page.write(args.build, FILES, tuple(FORMS))
    for row in unknown:
        print(f"not looked at: {row['test']}: {row['error']}: {row['text'][:300]}")
    sys.exit(bool(unknown))


if __name__ == "__main__":
    main()
