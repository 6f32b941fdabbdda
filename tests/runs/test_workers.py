import multiprocessing
import os
import signal

import pytest

from cler.config.settings import make_settings
from cler.engine.events import Progress
from cler.errors import UsageError
from cler.runs import workers
from cler.runs.jobs import make_jobs


class Killer:
    """Sends a signal to one of the workers as soon as something is heard of them."""

    def __init__(self, number):
        self.number = number

    def __call__(self, event):
        if isinstance(event, Progress):
            os.kill(multiprocessing.active_children()[0].pid, self.number)


@pytest.mark.parametrize(("number", "count"), [(signal.SIGTERM, 1), (signal.SIGKILL, 2)])
def test_a_worker_that_is_killed_ends_the_command_with_one_line(tmp_path, known_to_new_processes, number, count):
    settings = make_settings(method="finetune", dataset="toy", tasks=2, width=2, batch=5, epochs=1000)
    jobs = make_jobs(settings, [0, 1], tmp_path)
    for job in jobs:
        job.folder.mkdir(parents=True)
    with pytest.raises(UsageError, match="a worker process was killed"):
        workers.train_in_processes([[job] for job in jobs], None, count, Killer(number))
    assert not multiprocessing.active_children()
