"""The analyses of trained networks by the names of the paper's figures: figure1, figure3."""

from cler.errors import UsageError, unknown
from cler.paper import figure1, figure3
from cler.paper.analysis import Analysis
from cler.paper.tables import table_names

ANALYSES = {analysis.name: analysis for analysis in (figure1.ANALYSIS, figure3.ANALYSIS)}


def find_analysis(name: str) -> Analysis:
    """An analysis by the name of its figure."""
    if name in table_names():
        raise UsageError(f"{name} is made from accuracies alone: use `cler reproduce {name}`")
    if name not in ANALYSES:
        raise unknown("figure", name, ANALYSES)
    return ANALYSES[name]
