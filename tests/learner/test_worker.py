"""The thread in which a learner computes."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch

from cler.learner.worker import Worker
from cler.runs.machine import threads
from toys import wait_until


def test_functions_are_called_one_after_the_other_in_another_thread():
    worker, order, started, go_on = Worker(), [], threading.Event(), threading.Event()
    called_in = worker(threading.get_ident)
    assert called_in != threading.get_ident()

    def first():
        started.set()
        go_on.wait()
        order.append("first")

    others = [threading.Thread(target=worker, args=(first,)), threading.Thread(target=worker, args=(order.append, 2))]
    others[0].start()
    started.wait()
    others[1].start()
    wait_until(lambda: worker._tasks.qsize())
    go_on.set()
    worker(order.append, 3)
    for other in others:
        other.join()
    assert order == ["first", 2, 3]
    assert worker(threading.get_ident) == called_in


def test_the_number_of_threads_is_that_of_the_caller():
    worker = Worker()
    for count in (2, 1, 3):
        with threads(count):
            assert worker(torch.get_num_threads) == count
    assert worker(torch.get_num_threads) == torch.get_num_threads()


def test_the_thread_ends_with_the_worker():
    worker = Worker()
    thread = worker(threading.current_thread)
    assert thread.is_alive()
    del worker
    thread.join()


def test_an_error_comes_as_it_is_and_keeps_nothing():
    class Large:
        """Something that should not be kept."""

    def fail(large):
        raise KeyError("why")

    worker, large = Worker(), Large()
    gone = weakref.ref(large)
    gc.disable()
    try:
        with pytest.raises(KeyError, match="why") as caught:
            worker(fail, large)
        assert caught.traceback[-1].name == "fail"
        del caught, large
        worker(int)  # nor does the thread
        assert gone() is None
    finally:
        gc.enable()


def test_a_program_may_end_while_a_daemon_thread_learns():
    program = """
import atexit, threading, numpy, cler

learner = cler.Learner(image_size=8, width=4, buffer=20, device="cpu")
atexit.register(lambda: print(learner.n_seen_ >= 30))
images = numpy.zeros((100_000, 3, 8, 8), dtype=numpy.uint8)
threading.Thread(target=learner.partial_fit, args=(images, [0] * len(images)), daemon=True).start()
while learner.n_seen_ < 30:
    pass
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_starting_twice_makes_no_second_thread():
    """As when two ask first at the same moment, or the first one is interrupted before it knows of the thread."""
    worker, seen = Worker(), set()
    asking = [threading.Thread(target=lambda: seen.add(worker(threading.get_ident))) for _ in range(20)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert len(seen) == 1
