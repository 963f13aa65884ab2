"""Settings are the same in every test, whatever the environment or another test says; `--large` widens searches.

Programs compile in the process of the test, which waits for them; what the worker does has tests of its own.
"""

from __future__ import annotations

import os
import tempfile

import attrs
import pytest
from hypothesis import HealthCheck, settings

import gtrace as gt
from gtrace.config import Config

collect_ignore = ["data"]  # the scripts there need jax

settings.register_profile("small", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("large", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))


def pytest_addoption(parser):
    parser.addoption("--large", action="store_true", help="search for counterexamples for much longer")


def pytest_configure(config):
    # for the processes that tests start: never the user's own programs on disk
    os.environ["GT_BACKGROUND"] = "0"
    os.environ["GT_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"gtrace-tests-{os.getpid()}")
    settings.load_profile("large" if config.getoption("--large") else "small")


@pytest.fixture
def large(request) -> bool:
    return request.config.getoption("--large")


@pytest.fixture(autouse=True)
def default_settings():
    settings = attrs.asdict(Config(background=False))
    gt.config.update(**settings)
    yield
    gt.config.update(**settings)
