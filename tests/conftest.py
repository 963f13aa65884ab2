"""Settings are the defaults in every test, whatever the environment or another test says; `--large` widens searches."""

from __future__ import annotations

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
    settings.load_profile("large" if config.getoption("--large") else "small")


@pytest.fixture
def large(request) -> bool:
    return request.config.getoption("--large")


@pytest.fixture(autouse=True)
def default_settings():
    gt.config.update(**attrs.asdict(Config()))
    yield
    gt.config.update(**attrs.asdict(Config()))
