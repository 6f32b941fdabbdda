"""Ctrl-C and SIGTERM, as something that is under way hears of them."""

import os
import signal
import sys
import warnings

import pytest

from cler.engine import Control
from cler.signals import STOPPING, asked_to_stop, sleep, stopping_after_a_step


def test_the_first_signal_lets_the_step_end_and_the_second_does_not():
    control = Control()
    in_a_step = stopping_after_a_step(control)
    in_a_step.__enter__()
    signal.raise_signal(signal.SIGINT)
    assert isinstance(control.stop, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        in_a_step.__exit__(None, None, None)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # as before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_two_signals_at_the_same_moment_end_the_process_and_nothing_is_said():
    def both():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = lambda _: os._exit(7)  # what Python would tell of, and go on
        with stopping_after_a_step(Control()):
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
            for number in STOPPING:
                os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if not child:
        try:
            both()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_a_signal_after_the_last_step_of_all_is_not_lost():
    with pytest.raises(KeyboardInterrupt), stopping_after_a_step(Control()):
        signal.raise_signal(signal.SIGINT)


def test_who_asks_now_and_then_is_told_and_a_second_signal_does_not_wait():
    with asked_to_stop() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGTERM)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # as before


def test_a_wait_ends_when_asked_to_stop():
    asked = iter([False, False, True])
    sleep(3600.0, lambda: next(asked))
