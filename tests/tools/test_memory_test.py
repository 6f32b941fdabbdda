"""The test of memory in `tools/memory_test.py`: a few batches, and whether it would notice."""

import importlib.util
import signal
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "memory_test.py"
pytestmark = [
    pytest.mark.skipif(not SCRIPT.exists(), reason="tools/ is not in the source distribution"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell how much memory it is"),
]


@pytest.fixture
def tool():
    specification = importlib.util.spec_from_file_location("memory_test", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_it_measures(tool, tmp_path):
    before = signal.signal(signal.SIGVTALRM, tool.interrupt)
    try:
        learned, memory = tool.measure(batches=20, every=5)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert learned == [5, 10, 15, 20]
    assert all(size > 10 for size in memory)
    tool.draw(learned, memory, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 5000


def test_it_would_notice(tool):
    learned = list(range(1000, 101_000, 1000))
    a_byte_a_batch = [350 + number / 1e6 for number in learned]
    assert tool.rise(learned, a_byte_a_batch) == pytest.approx(0.1)
    assert tool.rise(learned, [300, *[350.0] * 99]) == pytest.approx(0, abs=1e-6)
    assert tool.rise(learned, [350 + 50 * number / 1e6 for number in learned]) > tool.MOST_GROWTH
