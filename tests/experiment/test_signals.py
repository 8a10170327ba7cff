"""Stopping signals: caught once or always, given back, and left alone outside the main thread."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from nws.experiment.signals import StopSignals


def test_the_first_signal_is_caught_and_the_second_acts_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[int] = []
    with StopSignals(seen.append) as stop:
        assert stop.caught is None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.caught == signal.SIGINT and seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_every_signal_is_caught_where_that_is_asked_for() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with StopSignals(once=False, numbers=(signal.SIGTERM, signal.SIGHUP)) as stop:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert stop.caught == number
    assert signal.getsignal(signal.SIGHUP) is before


def test_an_action_may_raise() -> None:
    def fail(number: int) -> None:
        raise RuntimeError(f"signal {number}")

    with pytest.raises(RuntimeError, match="signal 15"), StopSignals(fail):
        os.kill(os.getpid(), signal.SIGTERM)


def test_another_thread_leaves_signals_alone() -> None:
    before, inside = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with StopSignals():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
