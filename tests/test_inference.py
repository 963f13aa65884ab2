"""The types of results: what torch refuses is the user's error, what an operation's own code raises is not."""

from __future__ import annotations

import pytest
import torch

import gtrace as gt
from gtrace.core.ir.aval import aval
from gtrace.core.ir.op import Op
from gtrace.core.ir.rules import Rules


@pytest.mark.parametrize(
    ("error", "impl"),
    [
        (AttributeError, lambda x: x.no_such_method()),
        (TypeError, lambda x: torch.sin(x, "one too many")),
        (KeyError, lambda x: {}[x.dtype]),
        (IndexError, lambda x: x.reshape(x.shape[7])),
        (ValueError, lambda x: x.reshape([int("a")])),
        (RecursionError, lambda x: endless(x)),
    ],
)
def test_a_bug_of_an_implementation_is_not_the_users_error(error, impl):
    with pytest.raises(error) as info:
        Op("buggy", impl).instr((), (aval((2, 3), torch.float32),))
    assert not isinstance(info.value, gt.GtraceError)


def endless(x):
    return endless(x)


def test_a_bug_of_a_shape_rule_is_not_the_users_error():
    with pytest.raises(KeyError):
        Op("buggy", torch.sin, rules=Rules(shape=lambda avals: {}[avals])).instr((), (aval((2,), torch.float32),))


def halves(x):
    if x.shape[0] % 2:
        raise RuntimeError("a message that happens to speak of a dtype")
    return x.reshape(2, -1)


def floats_alone(x, y):
    return {torch.float32: torch.matmul}[x.dtype](x, y)


BOOLS, FLOATS = [((2,), torch.bool)] * 2, [((2, 3), torch.float32)] * 2


@pytest.mark.parametrize(
    ("error", "impl", "elementwise", "operands"),
    [
        # torch: "Subtraction, the `-` operator, with two bool tensors is not supported."
        (gt.DtypeError, torch.sub, True, BOOLS),
        (gt.DtypeError, torch.sub, False, BOOLS),
        (gt.DtypeError, torch.fmod, True, BOOLS),
        (gt.ShapeError, torch.matmul, False, FLOATS),
        (gt.ShapeError, halves, False, [((3,), torch.float32)]),
        (gt.ShapeError, floats_alone, False, FLOATS),
    ],
)
def test_what_torch_refuses_is_told_apart_by_trying_other_dtypes(error, impl, elementwise, operands):
    op = Op("strict", impl, arity=len(operands), elementwise=elementwise)
    with pytest.raises(error, match=r"\[strict\] expected operands that fit"):
        op.instr((), tuple(aval(*operand) for operand in operands))
