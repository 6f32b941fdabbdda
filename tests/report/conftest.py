from pathlib import Path

import pytest

from cler.report.content import make_report
from cler.runs.compare import compare
from cler.runs.results import Result, make_result

PLAIN = {
    "method": "er-ace",
    "regularizer": "none",
    "dataset": "toy",
    "tasks": 3,
    "buffer": 50,
    "epochs": 1,
    "lr": 0.01,
    "precision": "bf16",
}
ENVIRONMENT = {"cler": "1.2", "torch": "2.13", "hardware": "Abacus 9"}


class Runs:
    """Runs over three tasks whose class-incremental FAA is given, and whose task-incremental FAA is 20 more."""

    plain = PLAIN
    cler = PLAIN | {"regularizer": "jigsaw", "weight": 1.5}
    finetune = PLAIN | {"method": "finetune", "buffer": 0}
    joint = PLAIN | {"method": "joint", "buffer": 0}

    @staticmethod
    def make(settings, finals, seeds=None):
        results = []
        for seed, final in zip(seeds or range(len(finals)), finals, strict=True):
            rows = [[60.0], [50.0, 60.0], [final] * 3]
            rows = rows[-1:] if settings["method"] == "joint" else rows
            accuracy = {"class_il": rows, "task_il": [[number + 20 for number in row] for row in rows]}
            value = make_result(settings, seed, accuracy, 60.0, 60, dict(ENVIRONMENT))
            name = f"{settings['method']}-{settings['regularizer']}/{seed}/result.json"
            results.append(Result.from_dict(Path(name), value))
        return results

    def report(self, *pairs, **options):
        """The report on runs with the given settings and accuracies."""
        results = [run for settings, finals in pairs for run in self.make(settings, finals)]
        return make_report(compare(results), **options)

    def usual(self, **changes):
        """Finetune, Joint, ER-ACE, and ER-ACE + CLER, which gains three points."""
        return self.report(
            *(
                (settings | changes, finals)
                for settings, finals in (
                    (self.finetune, [16.0, 16.5, 15.5]),
                    (self.joint, [45.0, 46.0, 44.0]),
                    (self.plain, [30.0, 31.0, 29.0]),
                    (self.cler, [33.0, 34.5, 31.5]),
                )
            )
        )


@pytest.fixture(scope="session")
def runs():
    return Runs()
