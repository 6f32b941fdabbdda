"""Your own tracker: a callback that writes settings, curves and final metrics of every run to a SQLite file.

MLflow, your lab's database or a chat work the same way. The callback also gets the events of worker processes. If you
stop this program and run it again, it resumes, and no point is in the file twice: a later one replaces the first.
"""

import sqlite3

import cler
from cler import events

TABLES = """
create table if not exists settings (run text, name text, value text, primary key (run, name));
create table if not exists points (run text, step integer, name text, value real, primary key (run, step, name));
create table if not exists metrics (run text, name text, scenario text, value real, primary key (run, name, scenario));
"""


class SqliteTracker:
    def __init__(self, path):
        self.database = sqlite3.connect(path)
        self.database.executescript(TABLES)
        self.schedule = {}  # for each run: the steps of each task

    def __call__(self, event):
        match event:
            case events.Started(run, schedule=schedule, settings=settings):
                self.schedule[run] = schedule
                self.write("settings", [(run.label, name, str(value)) for name, value in settings.items()])
            case events.Progress(runs, task, step=step, sums=sums):  # for all the runs that train side by side
                for run, terms in zip(runs, sums, strict=True):
                    self.add(run, task, step, {f"loss/{name}": total / steps for name, (total, steps) in terms.items()})
            case events.Evaluated(run, task, accuracy):
                self.add(run, task, self.schedule[run][task], mean_of_each(accuracy))
            case events.EvaluatedWithin(run, task, step, accuracy):
                self.add(run, task, step, mean_of_each(accuracy))
            case events.Finished(run, metrics=metrics):
                rows = [(run.label, name, *each) for name, values in metrics.items() for each in values.items()]
                self.write("metrics", rows)

    def add(self, run, task, step, figures):
        step += sum(self.schedule[run][:task])
        self.write("points", [(run.label, step, name, value) for name, value in figures.items()])

    def write(self, table, rows):
        with self.database:
            for row in rows:
                self.database.execute(f"insert or replace into {table} values ({', '.join('?' * len(row))})", row)


def mean_of_each(accuracy):
    return {f"accuracy/{scenario}": sum(tasks) / len(tasks) for scenario, tasks in accuracy.items()}


tracker = SqliteTracker("curves.sqlite")
small = {"dataset": "cifar10-sample", "buffer": 200, "width": 2, "batch": 100, "seeds": 2}  # a demonstration
cler.train("er-ace", evaluate_every=10, callbacks=[tracker], **small)

for row in tracker.database.execute("select * from points where name = 'accuracy/class_il' order by run, step"):
    print(*row)
tracker.database.close()
