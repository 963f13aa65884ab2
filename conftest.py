"""What doctests find: the names that they use without importing them, and the default settings."""

import pytest

import gtrace
import gtrace.numpy


def pytest_configure(config):
    # whichever of them has imported gtrace.jax, which has other defaults
    gtrace.config.update(x64=True, jax_results=False)


@pytest.fixture(autouse=True, scope="session")
def names_of_examples(doctest_namespace):
    doctest_namespace.update(gt=gtrace, gnp=gtrace.numpy)
