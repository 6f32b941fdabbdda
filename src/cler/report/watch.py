"""A report that is written again as runs advance."""

from __future__ import annotations

import time
from collections.abc import Callable

from cler.report.numbers import count_runs
from cler.runs.scan import Scan
from cler.signals import sleep

REST = 4.0
"""Times as long as looking and writing took that nothing is done afterwards, so that training is not held up."""


def watch(
    scan: Scan,
    write: Callable[[], None],
    stop: Callable[[], bool],
    *,
    every: float,
    status: Callable[[str], None] = lambda line: None,
) -> None:
    """Look at the runs every so many seconds, and write when something has changed, until asked to stop.

    Folders may come later. `status` is told how many runs there are.
    """
    written = False
    while not stop():
        began = time.monotonic()
        if scan.update(wait=True) or not written:
            write()
            written = True
        running = sum(one.running for one in scan.unfinished)
        status(f"{count_runs(scan.results)} finished, {running} running, {len(scan.unfinished) - running} stopped")
        took = time.monotonic() - began
        sleep(max(every, REST * took), stop)
