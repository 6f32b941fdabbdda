"""Looks into trained networks: gradients, importance, redundancy, recovery, and the paper's figures of these."""

from cler.errors import UsageError, unknown
from cler.paper import figure1, figure3
from cler.paper.study import Study
from cler.paper.tables import table_names

STUDIES = {study.name: study for study in (figure1.STUDY, figure3.STUDY)}


def find_study(name: str) -> Study:
    """A study by the name of its figure."""
    if name in table_names():
        raise UsageError(f"{name} needs no look into networks: cler reproduce {name}")
    if name not in STUDIES:
        raise unknown("figure", name, STUDIES)
    return STUDIES[name]
