"""A learner's own thread, which does everything that involves its network, one thing after the other."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import torch

from cler.errors import UsageError
from cler.runs.usual_modes import usual_modes

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """Calls functions in a thread of its own, in the order in which they come.

    No signal handler runs in that thread, so a function that has begun ends as it would have, whatever interrupts its
    caller. Nor do the caller's modes hold there, such as no_grad, inference_mode, autocast, and the defaults for dtype
    and device; only its CUDA stream and its number of CPU threads do.
    """

    def __init__(self) -> None:
        self._forked_inside = self._closed = False
        self._begin()
        _workers.add(self)

    def _begin(self) -> None:
        self._calls, self._is_taken = threading.RLock(), False
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._running, self._inside = threading.Lock(), threading.Lock()
        self._end = weakref.finalize(self, self._tasks.put, None)
        self._end.atexit = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, other threads that call `alone` wait, so that nothing comes between several calls."""
        self._check_outside()
        with self._calls:
            if self._is_taken:
                raise UsageError(
                    "this learner is in the middle of a call that was interrupted by this one, as by a signal handler: "
                    "let that call end first; meanwhile it can predict and be saved"
                )
            self._is_taken = True
            try:
                yield
            finally:
                self._is_taken = False

    def _check_outside(self) -> None:
        if getattr(_here, "tasks", None) is self._tasks:
            raise UsageError("a learner cannot be used inside a step of its own, as by a hook of its network")

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The function's result, or its error; an interrupted caller still waits until the function has ended."""
        if self._forked_inside:
            raise UsageError(
                "this process was forked while another thread used the learner, which is not whole here: use it in the "
                "process that made it, or save it and load it in this one"
            )
        self._check_outside()
        task = _Task(lambda: function(*arguments, **named))
        interruption = self._hand_over(task)
        error = task.error if interruption is None else interruption
        if error is None:
            return task.result
        try:
            raise error
        finally:
            del error, interruption, task  # or the error would refer to itself, and keep all that it refers to

    def _hand_over(self, task: _Task) -> BaseException | None:
        """Have a task run to its end; returns the exception that interrupted the wait, if any."""
        if self._closed and threading.current_thread() is threading.main_thread():
            task.run()
            return None
        if not self._running.locked():
            parts = self._tasks, self._running, self._inside
            threading.Thread(target=_work, args=parts, name="cler-learner", daemon=True).start()
        self._tasks.put(task)
        return task.wait()

    def close(self) -> None:
        """At the end of the program: wait for a running function, then run only those of the main thread, there.

        A thread that computes while the interpreter ends would crash it, and one that is started then does not run.
        """
        self._inside.acquire()
        self._closed = True

    def after_fork(self) -> None:
        """In a forked child, where there is no thread but the one that has forked."""
        self._end.detach()
        self._forked_inside |= self._inside.locked()
        self._begin()


class _Task:
    """A function that somebody waits for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.threads = torch.get_num_threads()
        self.stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        self.awaited, self.ended = True, False
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        """Call the function, unless nobody waits for it any longer."""
        try:
            if self.threads != torch.get_num_threads():
                torch.set_num_threads(self.threads)
            stream: AbstractContextManager[Any] = torch.cuda.stream(self.stream) if self.stream else nullcontext()
            with usual_modes(), stream:
                if self.awaited:
                    self.result = self.function()
        except BaseException as error:
            self.error = error
        finally:
            del self  # which the error would refer to

    def wait(self) -> BaseException | None:
        """Wait until it is done, whatever happens; returns the exception that interrupted the wait, if any."""
        interruption = None
        while not self.ended:  # which may be so although the wait was interrupted
            try:
                self.done.acquire()
            except BaseException as error:
                interruption, self.awaited = error, False
        return interruption


def _work(tasks: SimpleQueue[_Task | None], running: threading.Lock, inside: threading.Lock) -> None:
    """Run tasks until one is None; holds no reference to the worker, whose end is to end the thread."""
    if not running.acquire(blocking=False):
        return  # another thread was started at the same moment
    _here.tasks = tasks
    while task := tasks.get():
        with inside:
            _here.task = task
            task.run()
            del _here.task
        task.ended = True
        task.done.release()
        del task


def is_awaited() -> bool:
    """Whether somebody still waits for what this thread computes."""
    task: _Task | None = getattr(_here, "task", None)
    return task is None or task.awaited


def apart_from_fork(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function that computes: in the caller's thread, or in a new one if the caller's has forked.

    Of the threads that torch computes with, each thread has its own. They are gone in a forked child, where the thread
    that forked would wait for them for ever.
    """
    if getattr(_here, "has_forked", False):
        return Worker()(function, *arguments, **named)
    return function(*arguments, **named)


@atexit.register
def _at_exit() -> None:
    for worker in list(_workers):
        worker.close()


def _after_fork() -> None:
    _here.has_forked = True
    for worker in list(_workers):
        worker.after_fork()


_here = threading.local()
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
