"""Calls with a keyword that a function does not have, or without an argument: what users read."""

from __future__ import annotations

import builtins
import functools
import subprocess
import sys
import types

import numpy as np
import pytest

import gtrace as gt
from gtrace import call_errors

X = gt.array([[1.0, 2.0], [3.0, 4.0]])
KEY = gt.random.key(0)
ATTENTION = gt.nn.MultiHeadAttention(4, 2, key=KEY)
SUM = functools.partial(gt.sum, dim=1)


def read(call):
    """Return what is shown of the error of a call."""
    with pytest.raises(TypeError) as caught:
        call()
    error = call_errors.explained(caught.value, caught.value.__traceback__) or caught.value
    return str(error)


CALLS = {
    "[sum] expected axis=, got dim=. It takes (x, axis=None, dtype=None, *, keepdims=False,": lambda: gt.sum(X, dim=0),
    "[softmax] expected axis=, got dim=. It takes (x, axis=-1, where=None). (at": lambda: gt.softmax(X, dim=-1),
    "[mean] expected keepdims=, got keepdim=": lambda: gt.mean(X, 0, keepdim=True),
    "[concatenate] expected axis=, got dim=": lambda: gt.concatenate([X, X], dim=1),
    "[concat] expected arrays=, got tensors=": lambda: gt.concat(tensors=[X, X]),
    "[argsort] expected axis=, got dim=": lambda: gt.argsort(X, dim=1),
    "[sort] expected descending=, got decending=": lambda: gt.sort(X, decending=True),
    "[swapaxes] expected axis1=, got dim0=": lambda: gt.swapaxes(X, dim0=0, dim1=1),
    "[transpose] expected one of its arguments, got dim0=. Use gt.swapaxes": lambda: gt.transpose(X, dim0=0, dim1=1),
    "[add] expected y=, got other=": lambda: gt.add(X, other=X),
    "[exp] expected x=, got input=": lambda: gt.exp(input=X),
    "[exp] expected one of its arguments, got out=. Arrays never change": lambda: gt.exp(X, out=X),
    "[var] expected correction=, got unbiased=": lambda: gt.var(X, unbiased=True),
    "[sum] expected one of its arguments, got nothing_like_it=": lambda: gt.sum(X, nothing_like_it=1),
    "[sum] expected x, got no value. It takes (x, ": lambda: gt.sum(),
    "[swapaxes] expected axis1 and axis2, got no value": lambda: gt.swapaxes(X),
    "[exp] expected at most 1 argument by position, got 2": lambda: gt.exp(X, X),
    "[sum] expected axis once, got it by position and by keyword": lambda: gt.sum(X, 0, axis=0),
    "[random.normal] expected shape=, got size=": lambda: gt.random.normal(KEY, size=(3,)),
    "[random.normal] expected one of its arguments, got mean=. Write mean + std": lambda: gt.random.normal(KEY, mean=1),
    "[random.normal] expected key, got no value. Pass gt.random.key(0)": lambda: gt.random.normal(shape=(3,)),
    "[linalg.norm] expected ord=, got p=": lambda: gt.linalg.norm(X, p=2),
    "[linalg.inv] expected argument 1 by position, got A=": lambda: gt.linalg.inv(A=X),
    "[linalg.inv] expected x by position, got a keyword": lambda: gt.linalg.inv(x=X),
    "[fft.fftn] expected axes=, got dim=": lambda: gt.fft.fftn(X, dim=0),
    "[nn.cross_entropy] expected logits=, got input=": lambda: gt.nn.cross_entropy(input=X, target=X),
    "[nn.dropout] expected rate=, got p=": lambda: gt.nn.dropout(X, p=0.5),
    "[nn.embedding] expected table=, got weight=": lambda: gt.nn.embedding(X, weight=X),
    "[nn.MultiHeadAttention] expected mask=, got attn_mask=": lambda: ATTENTION(X, attn_mask=X),
    "[take] expected axis=, got dims=": lambda: X.take(0, dims=0),
    "[vmap] expected in_axes=, got in_axis=": lambda: gt.vmap(gt.sum, in_axis=0),
    "[lax.top_k] expected operand=, got operands=": lambda: gt.lax.top_k(operands=X, k=1),
    "[sum] expected axis=, got dim= ": lambda: SUM(X),
}


@pytest.mark.parametrize("text", CALLS)
def test_a_call_with_wrong_arguments_names_what_to_write(text):
    shown = read(CALLS[text])
    assert shown.startswith(text.strip())
    line = CALLS[text].__code__.co_firstlineno
    assert shown.endswith(f"(at {__file__}:{line})")


CONSTRUCTORS = {
    "[optim.adam] expected learning_rate=, got lr=. It takes (learning_rate, b1": lambda: gt.optim.adam(lr=1e-3),
    "[optim.adam] expected b1= and b2=, got betas=": lambda: gt.optim.adam(1e-3, betas=(0.9, 0.999)),
    "[optim.adam] expected learning_rate, got no value": lambda: gt.optim.adam(),
    "[optim.adam] expected one of its arguments, got weight_decay=. Chain": lambda: gt.optim.adam(0.1, weight_decay=1),
    "[optim.sgd] expected one of its arguments, got params=. Optimizers hold": lambda: gt.optim.sgd(0.1, params=X),
    "[optim.sgd] expected at most 4 arguments by position, got 5": lambda: gt.optim.sgd(0.1, 0.9, False, None, 1),
    "[optim.clip] expected max_delta=, got clip_value=": lambda: gt.optim.clip(clip_value=1),
    "[optim.cosine_decay_schedule] expected decay_steps=": lambda: gt.optim.cosine_decay_schedule(0.1, T_max=9),
    "[nn.initializers.normal] expected stddev=, got std=": lambda: gt.nn.initializers.normal(std=0.1),
    "[nn.Linear] expected in_features=, got in_feature=": lambda: gt.nn.Linear(in_feature=3, out_features=4),
    "[nn.Linear] expected out_features, got no value": lambda: gt.nn.Linear(3),
    "[nn.Conv2d] expected padding=, got paddin=": lambda: gt.nn.Conv2d(3, 4, 3, paddin=1, key=KEY),
    "[nn.Dropout] expected at most 1 argument by position, got 2": lambda: gt.nn.Dropout(0.5, True),
}


@pytest.mark.parametrize("text", CONSTRUCTORS)
def test_what_makes_optimizers_and_modules_raises_it(text):
    with pytest.raises(gt.ArgumentError) as caught:
        CONSTRUCTORS[text]()
    shown = str(caught.value)
    assert shown.startswith(text)
    assert shown.endswith(f"(at {__file__}:{CONSTRUCTORS[text].__code__.co_firstlineno})")


def test_modules_of_users_name_their_fields():
    class Affine(gt.nn.Module):
        scale: gt.Array
        shift: gt.Array

    with pytest.raises(gt.ArgumentError, match=r"^\[Affine\] expected scale=, got scal=. It takes \(scale, shift\)"):
        Affine(scal=X, shift=X)

    class Wide(gt.nn.Linear):
        def __init__(self, width):
            super().__init__(width, width, nokey=KEY)

    with pytest.raises(gt.ArgumentError, match=r"expected key=, got nokey="):
        Wide(3)


def total(x, *rest):
    return gt.sum(x, dim=0)


@pytest.mark.parametrize(
    "call",
    [gt.grad(total), gt.value_and_grad(total), gt.jit(total), gt.vmap(total), gt.grad(gt.checkpoint(total)),
     gt.jacrev(total),
     lambda x: gt.jvp(total, (x,), (x,)), lambda x: gt.scan(total, x, x)],
)  # fmt: skip
def test_functions_that_gtrace_calls_raise_it(call):
    with pytest.raises(gt.ArgumentError, match=r"^\[sum\] expected axis=, got dim=") as caught:
        call(X)
    line = total.__code__.co_firstlineno + 1
    assert str(caught.value).endswith(f"(at {__file__}:{line})")
    trace = caught.value.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert (trace.tb_frame.f_code, trace.tb_lineno) == (total.__code__, line)


def softmax(x):
    raise TypeError("softmax() got an unexpected keyword argument 'dim'")


def test_errors_of_others_are_left_alone():
    def sum(x):  # noqa: A001 - named as one of gtrace's
        return gt.exp(x) + "no operand"

    functions = {"sum": sum}
    for call in (
        lambda: sum(X, dim=0),
        lambda: functions["sum"](X, dim=0),
        lambda: sum(X),
        lambda: softmax(X),
        lambda: np.sum(np.ones(3), dim=0),
        lambda: builtins.sum([X], dim=0),
        lambda: gt.grad(softmax)(gt.array(1.0)),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert call_errors.explained(caught.value, caught.value.__traceback__) is None
        assert type(caught.value) is not gt.ArgumentError or "dim=" not in str(caught.value)
    assert call_errors.explained(ValueError("sum() got"), None) is None


SCRIPT = """\
import gtrace as gt
x = gt.ones(3)

gt.softmax(x, dim=0)
"""


@pytest.mark.parametrize("launcher", [(), ("-m", "gtrace", "run")])
def test_an_uncaught_error_is_shown_clearly(tmp_path, launcher):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, *launcher, str(path)], capture_output=True, text=True)
    *trace, last = done.stderr.rstrip().splitlines()
    assert done.returncode == 1
    assert last == (
        "gtrace.errors.ArgumentError: [softmax] expected axis=, got dim=. It takes (x, axis=-1, where=None)."
        f" (at {path}:4)"
    )
    assert trace[-2:] == [f'  File "{path}", line 4, in <module>', "    gt.softmax(x, dim=0)"] or "^" in trace[-1]
    assert sum("File" in line for line in trace) == 1


def test_a_notebook_shows_it_below_the_error(monkeypatch, capsys):
    registered = {}
    shell = types.SimpleNamespace(events=types.SimpleNamespace(register=registered.__setitem__))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    call_errors.watch()
    show = registered["post_run_cell"]
    show(types.SimpleNamespace(error_in_exec=None))
    with pytest.raises(TypeError) as caught:
        gt.softmax(X, dim=0)
    show(types.SimpleNamespace(error_in_exec=caught.value))
    assert capsys.readouterr().err.startswith("[softmax] expected axis=, got dim=")
