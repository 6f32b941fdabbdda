import io

from cler.config.making import make_settings
from cler.paper.lines import lines
from cler.paper.tables import find_table
from cler.paper.terminal_table import paper_table
from cler.report.console import Terminal


def shown(table, width=80):
    stream = io.StringIO()
    Terminal(width=width, color_system=None, file=stream).print(table)
    return stream.getvalue()


def test_the_table_of_significance_has_five_decimals_and_holms_correction(runs):
    finals = [[20.0, 21.0, 19.0], [23.0, 24.0, 25.0]], [[26.0, 27.0, 28.0], [27.0, 29.5, 31.0]]
    pairs = [
        (make_settings(regularizer=name, dataset="cifar100", buffer=size, precision="bf16").to_dict(), numbers)
        for size, both in zip((500, 2000), finals, strict=True)
        for name, numbers in zip(("none", "jigsaw"), both, strict=True)
    ]
    table = find_table("significance")
    text = shown(paper_table(table, lines(table, runs.compare(*pairs).groups)))
    first, second, *_ = [line.split() for line in text.splitlines() if line.startswith("ER-ACE")]
    assert first == ["ER-ACE", "3", "+4.00", "0.00805", "0.00001", "0.01610"]
    assert second == ["ER-ACE", "3", "+2.17", "0.17135", "<", "0.00001", "0.17135"]
    assert "for all tests in the whole table" in " ".join(text.split())
    assert "X-DER – < 0.00001 + CLER" in " ".join(text.split())  # no runs of ours
