"""A machine on which others are busy: what they take is not put down to the worker, and a request does not starve."""

from __future__ import annotations

import random

import pytest
from test_sharing import Machine

import gtrace as gt
from gtrace.core.runtime.worker import lane as lanes
from gtrace.core.runtime.worker import sharing as module
from gtrace.core.runtime.worker.client import worker as client
from gtrace.core.runtime.worker.sharing import MOST_DEBT, Sharing


class Crowd(Machine):
    """A machine on which other programs make calls longer, whether the worker runs or not."""

    others = 5.0

    def call(self, seconds):
        return super().call(seconds * self.others * random.uniform(0.5, 1.5))


@pytest.fixture
def crowd(monkeypatch):
    machine = Crowd(0.05)
    monkeypatch.setattr(module, "worker", machine)
    monkeypatch.setattr(module, "time", machine)
    random.seed(0)
    return machine


def run(machine, sharing, seconds, usual=0.01):
    """Make calls for so long; returns which part of the time the worker worked."""
    start, worked = machine.now, machine.worked
    while machine.now < start + seconds:
        sharing.run(machine.call(0.01), [], usual)
    return (machine.worked - worked) / (machine.now - start)


def test_what_others_take_does_not_stop_the_worker(crowd):
    with gt.config(compile_share=0.1):
        sharing = Sharing()
        run(crowd, sharing, 5.0)
        assert run(crowd, sharing, 20.0) > 0.5
        assert sharing.slowdown() < 0.3, "nor does the policy believe that compiling costs so much"


def test_when_the_others_have_ended_the_worker_pays_as_before(crowd):
    with gt.config(compile_share=0.1):
        sharing = Sharing()
        run(crowd, sharing, 20.0)
        crowd.others, crowd.slowdown = 1.0, 0.5
        run(crowd, sharing, 5.0)
        assert sharing.others == 1.0
        start, undisturbed = crowd.now, 0.0
        while crowd.now < start + 50.0:
            sharing.run(Machine.call(crowd, 0.01), [], 0.01)
            undisturbed += 0.01
    assert crowd.now - start - undisturbed <= 0.1 * 50.0 + MOST_DEBT + module.MOST_CREDIT


def test_a_request_that_starves_may_cost_three_times_the_share_and_no_more(crowd):
    crowd.others, crowd.slowdown, crowd.starves = 1.0, 0.5, True
    with gt.config(compile_share=0.1):
        sharing, undisturbed = Sharing(), 0.0
        while crowd.now < 100.0:
            sharing.run(Machine.call(crowd, 0.01), [], 0.01)
            undisturbed += 0.01
        lost = (crowd.now - undisturbed) / crowd.now
        assert 0.2 < lost <= module.AT_ONCE * 0.1 + 0.01
        worked = crowd.worked
        sharing.run(Machine.call(crowd, 0.01), [], 0.0)
        assert crowd.worked > worked, "calls of unknown time do not stop it for ever"
    with gt.config(compile_share=0.0):
        crowd.paused = False
        worked = crowd.worked
        sharing.run(Machine.call(crowd, 0.01), [], 0.0)
        assert crowd.worked == worked, "a program that is to lose nothing loses nothing"


def test_a_request_starves_if_its_compiler_was_stopped_nearly_all_the_time(monkeypatch):
    lane, now, stopped = client._worker, 100.0, 7.0
    monkeypatch.setattr(lanes.time, "monotonic", lambda: now)
    monkeypatch.setattr(type(lane._pauses), "seconds", property(lambda _: stopped))
    assert not client.starves, "there is none"
    monkeypatch.setattr(lane, "_began", (100.0, 7.0))
    monkeypatch.setattr(lane, "_current", object())
    now, stopped = 104.0, 11.0
    assert not client.starves, "it has just begun"
    now, stopped = 110.0, 15.0
    assert not client.starves
    stopped = 16.5
    assert client.starves
