"""Shared libraries without AOTInductor's model: which programs get one, and that their errors arrive."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import gtrace as gt
from gtrace.core.backends.inductor import instructions, launcher
from gtrace.core.backends.inductor.folders import headers_folder, private_folders
from gtrace.core.base import torch_internals as internals
from gtrace.core.runtime.cache.artifact_cache import artifacts
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.policy import CostModel
from gtrace.testing import assert_close

pytestmark = pytest.mark.inductor

MODEL = b"AOTInductorModelContainerGetNumInputs"
"""An entry point of AOTInductor's model, which torch's runner does without."""


@pytest.fixture
def libraries(tmp_path):
    """The contents of the libraries in a store of its own."""
    with gt.config(background=True, cache_dir=str(tmp_path / "programs")):
        yield lambda: [artifacts.store.code(manifest).read_bytes() for manifest in artifacts.store.all()]


def step(w, x, y):
    loss, grad = gt.value_and_grad(lambda w: ((gt.tanh(x @ w) - y) ** 2).mean())(w)
    return w - 0.1 * grad, loss


ARGS = gt.ones((4, 3)), gt.ones((5, 4)), gt.zeros((5, 3))


@pytest.mark.slow
def test_what_jit_compiles_has_no_model_and_is_found_by_the_next_one(libraries):
    w, loss = gt.jit(step)(*ARGS)
    assert_close(loss, np.tanh(4.0) ** 2, check_dtype=False)
    (library,) = libraries()
    assert MODEL not in library
    assert len(library) < 500_000
    assert (b"madvise" in library) == (sys.platform == "linux"), "large results ask for large pages"
    expected, _ = step(*ARGS)
    assert_close(w, expected)


WRAPPER = """
}  // extern "C"
int helper();
namespace torch::aot_inductor {
void AOTInductorModel::run_impl(int x) {
  __check_inputs_outputs(x);
  call(x);
} // AOTInductorModel::run_impl
"""
"""What Inductor generates beside the kernels, as far as it is read."""


def test_the_function_of_a_program_is_taken_without_its_model():
    text = launcher.launcher(WRAPPER, 1, [])
    assert "int helper();" in text and "call(x);" in text and "__check_inputs_outputs" not in text


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ('// extern "C"', "// C"), ("namespace torch::aot_inductor {", "namespace torch::other {"),
        ("::run_impl(", "::run("), ("} // AOTInductorModel::run_impl", "}"),
        ("call(x)", "call(constants_[0])"), ("call(x)", "kernels.call(x)"), ("call(x)", "call(outputs_info_)"),
    ],
)  # fmt: skip
def test_a_program_that_reads_otherwise_is_built_by_torch(found, instead):
    assert found in WRAPPER and launcher.launcher(WRAPPER.replace(found, instead), 1, []) is None


@pytest.mark.slow
def test_a_torch_whose_headers_lack_something_gets_the_model(libraries, monkeypatch):
    monkeypatch.setattr(launcher, "_PROGRAM", "#error no such header\n")
    monkeypatch.setattr(engine.tiering, "worker_cost", CostModel(startup=1e9))  # in this process
    _, loss = gt.jit(lambda *args: [gt.sin(x) for x in step(*args)])(*ARGS)
    assert_close(loss, np.sin(np.tanh(4.0) ** 2), check_dtype=False)
    (library,) = libraries()
    assert MODEL in library


@pytest.mark.slow
def test_errors_of_torch_arrive_from_compiled_code(capfd):
    with gt.config(compile=True), pytest.raises(gt.ExecutionError, match=r"program \w+"):
        gt.eval(gt.take(gt.sin(gt.arange(5.0)), gt.array([7, 1]), mode="raise") * 2)
    capfd.readouterr()


@pytest.mark.parametrize(("accepts", "known"), [(True, True), (False, None)])
def test_torch_tries_vector_instructions_only_where_the_compiler_refuses_them(monkeypatch, tmp_path, accepts, known):
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-fsyntax-only*) exit {0 if accepts else 1};; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert instructions.vector_instructions_known.__wrapped__() is known
    with internals.PATCH_CONFIG.get()({"cpp.vec_isa_ok": False}):
        assert instructions.vector_instructions_known.__wrapped__() is False, "the user's setting is kept"


@pytest.mark.slow
def test_compiled_code_leaves_the_mode_of_gradients_as_it_was():
    f = gt.jit(lambda x: gt.tanh(x) @ x)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            f(gt.ones((3, 3))).numpy()
            assert torch.is_grad_enabled() is enabled


def test_a_precompiled_header_that_was_cut_off_is_made_again(tmp_path, monkeypatch):
    """As after a compiler that was killed. Other compilers would stumble over it, in each later process."""
    made = []

    def precompile(header, command, **options):
        """Do as torch does: what is there is taken as it is."""
        path = headers_folder() / "abc.h"
        if not path.with_suffix(".h.gch").exists():
            made.append(command)
            path.with_suffix(".h.gch").write_bytes(b"whole")
        return str(path)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(f"{internals.PRECOMPILE_HEADER}", precompile)
    header = headers_folder() / "abc.h.gch"

    def compile_twice():
        with private_folders():
            return [launcher._precompiled_header("g++", {}) for _ in range(2)]

    for damage in (b"wh", None, b"", b"whole and more"):
        before = len(made)
        header.unlink(missing_ok=True) if damage is None else header.write_bytes(damage)
        assert compile_twice() == [str(header)[:-4]] * 2
        assert header.read_bytes() == b"whole" and len(made) == before + 1
    header.write_bytes(b"wh")
    for note in headers_folder().glob("gtrace-????*"):
        note.unlink()  # the process was killed before it was noted
    compile_twice()
    assert header.read_bytes() == b"whole"
