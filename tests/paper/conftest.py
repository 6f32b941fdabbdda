import tomllib

import pytest

from cler.paper import settings as paper_settings
from cler.paper import tables
from cler.paper.settings import paper_file
from cler.paper.tables import find_table

SMALL = """
[tables.small]
title = "A small table"

[[tables.small.columns]]
runs = { dataset = "cifar10-sample", buffer = 20 }
class_il."er-ace" = { mean = 20.0, std = 1.0, adjusted_forgetting = 30.0 }
class_il."er-ace+jigsaw" = { mean = 24.0, std = 1.0, p = 0.001 }
task_il."er-ace" = { mean = 60.0 }
task_il."er-ace+jigsaw" = { mean = 64.0 }

[[tables.small.columns]]
runs = { dataset = "cifar10-sample", buffer = 20, epochs = 3 }
class_il."er-ace" = { mean = 30.0 }

[[tables.small.columns]]
runs = { dataset = "imagenet-21k" }
class_il."joint" = { mean = 10.0 }

[[tables.small.columns]]
runs = { dataset = "cifar10-sample" }
class_il."icarl" = { mean = 11.0 }
"""


@pytest.fixture
def table(monkeypatch):
    """A table of er-ace with and without CLER, and of what this version does not have."""
    file = paper_file() | {"tables": tomllib.loads(SMALL)["tables"]}
    for module in (tables, paper_settings):
        monkeypatch.setattr(module, "paper_file", lambda: file)
    return find_table("small")
