"""What makes optimizers and modules, called with a keyword that it does not have, or without an argument."""

from __future__ import annotations

import pytest

import gtrace as gt

X = gt.array([[1.0, 2.0], [3.0, 4.0]])
KEY = gt.random.key(0)


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


def test_errors_within_a_constructor_are_left_alone():
    class Broken(gt.nn.Module):
        def __init__(self):
            abs("no number")

    with pytest.raises(TypeError, match="bad operand") as caught:
        Broken()
    assert not isinstance(caught.value, gt.ArgumentError)
