"""Cells of the small table of the paper's tests, and runs of them."""

from pathlib import Path

from cler.files import write_json
from cler.paper import reproduce
from cler.runs.compare import compare
from cler.runs.results import Result, make_result


def pair_of(cell):
    """As in `paper.toml`."""
    return f"{cell.method}+{cell.regularizer}".removesuffix("+none")


def cell_of(table, pair, epochs=1):
    (cell,) = [cell for cell in table.cells if (pair_of(cell), cell.epochs) == (pair, epochs)]
    return cell


def results(cell, finals, *, precision="fp32", **changes):
    """Complete runs of a cell, a final class-incremental accuracy each; the task-incremental ones are 40 higher."""
    for seed, final in enumerate(finals):
        rows = [[50.0] * task + [55.0] for task in range(4)] + [[final] * 5]
        accuracy = {"class_il": rows, "task_il": [[x + 40 for x in row] for row in rows]}
        yield make_result(cell.settings(precision).to_dict() | changes, seed, accuracy, 1.0, 1, {})


def groups_of(*made):
    return compare(Result.from_dict(Path("run"), value) for values in made for value in values).groups


def look(table, out, seeds=2, **options):
    return reproduce.take_inventory(table, out, seeds=seeds, precision="fp32", **options)


def store(folder, values):
    for value in values:
        write_json(folder / f"seed-{value['seed']}" / "result.json", value)
