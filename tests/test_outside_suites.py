"""The runners of JAX's and the array API's own tests, on a small suite of our own, and on theirs where they are given.

The project contains neither suite: JAX_SOURCE and ARRAY_API_TESTS name checkouts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
JAX, ARRAY_API = HERE / "jax_suite" / "run.py", HERE / "array_api_suite" / "run.py"

MODULES = {
    "jax/_src/test_util.py": """
        import unittest
        from jax._src import config, dtypes
        class JaxTestCase(unittest.TestCase):
            def assertCacheMisses(self, n):
                pass
        def count_compilations():
            raise AssertionError("this counts nothing here")
    """,
    "jax/_src/dtypes.py": """
        import numpy as np
        from jax._src.lib import jaxlib_extension_version
        def canonicalize_dtype(dtype, allow_extended_dtype=False):
            return np.dtype(dtype)
    """,
    "tests/small_test.py": """
        import unittest
        import jax, jax.numpy as jnp
        from jax import lax
        from jax._src import test_util as jtu
        import jax._src.core as core
        from jax._src.some.place import helper
        CASES = [lax.no_such_function, jnp.add]
        @helper
        class Small(jtu.JaxTestCase):
            def test_right(self):
                self.assertEqual(float(jax.jit(lambda x: 2 * x)(jnp.float32(3))), 6.0)
            def test_other_number(self):
                self.assertEqual(float(jnp.ones(3).sum()), 4.0)
            def test_missing(self):
                CASES[0](1.0)
            def test_internal(self):
                core.no_public_name(None)
            def test_counts(self):
                jtu.count_compilations()
            def test_raises(self):
                jnp.ones(2) + jnp.ones(3)
            def test_accepts(self):
                with self.assertRaises(TypeError):
                    jnp.ones(2)
            def test_ends_the_process(self):
                import os
                os._exit(3)
            @unittest.skip("for a reason")
            def test_skipped(self):
                pass
    """,
}


def run(program: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    return subprocess.run([sys.executable, program, *args], capture_output=True, text=True, env=env, timeout=900)


@pytest.mark.slow
def test_jaxs_tests_run_on_gtrace_with_stand_ins_for_internals(tmp_path):
    for name, text in MODULES.items():
        file = tmp_path / "source" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        file.write_text("\n".join(line[8:] for line in lines))
    build = tmp_path / "build"
    (build / "packages").mkdir(parents=True)
    (build / "packages" / "ml_dtypes.py").touch()  # what the packages of the real suite have
    done = run(JAX, "--source", tmp_path / "source", "--build", build, "--forms", "interpreted", "--", "small_test")
    rows = [json.loads(line) for line in (build / "interpreted" / "small_test.jsonl").read_text().splitlines()]
    found = {r["test"].rpartition(".")[2]: r["outcome"] + r.get("kind", "") for r in rows}
    assert found == {
        "(collected)": "collected", "test_right": "passed", "test_other_number": "faileda", "test_missing": "failedb",
        "test_internal": "skipped", "test_counts": "skipped", "test_raises": "failedc", "test_accepts": "failedd",
        "test_ends_the_process": "failedf", "test_skipped": "skipped",
    }, done.stderr  # fmt: skip
    assert "1 of 6 right" in done.stdout and done.returncode == 1 and "not looked at: small_test" in done.stdout


@pytest.mark.parametrize(("program", "where"), [(JAX, "jax-v0.10.2"), (ARRAY_API, "data-apis/array-api-tests")])
def test_without_the_sources_the_error_says_how_to_get_them(program, where, tmp_path):
    done = run(program, "--source", tmp_path)
    assert done.returncode and where in done.stderr and str(tmp_path) in done.stderr


@pytest.mark.parametrize("folder", ["jax_suite", "array_api_suite"])
def test_each_cause_has_a_pattern_of_its_own(folder):
    causes = yaml.safe_load((HERE / folder / "causes.yaml").read_text())
    assert len({c["match"] for c in causes}) == len({c["about"] for c in causes}) == len(causes)


@pytest.mark.slow
@pytest.mark.skipif("JAX_SOURCE" not in os.environ, reason="JAX_SOURCE names no checkout of JAX")
def test_a_sample_of_jaxs_tests_fails_for_known_causes_only(tmp_path):
    files = ("lax_numpy_test", "lax_test", "custom_api_test", "random_test")
    args = ("--source", os.environ["JAX_SOURCE"], "--build", tmp_path, "--forms", "interpreted", "x64", "--most", "100")
    done = run(JAX, *args, "--", *files)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.skipif("ARRAY_API_TESTS" not in os.environ, reason="ARRAY_API_TESTS names no checkout of these tests")
def test_a_sample_of_the_array_apis_tests_passes():
    done = run(ARRAY_API, "--source", os.environ["ARRAY_API_TESTS"], "--only", "test_searching or test_linalg")
    assert done.returncode == 0, done.stdout
