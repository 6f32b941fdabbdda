import pytest
import safetensors.torch
import torch

from cler.engine.tensorfile import checksum, on_host, pieces

TENSORS = on_host(
    {
        "maps": torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).to(
            memory_format=torch.channels_last
        ),
        "half": torch.arange(5).to(torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "one": torch.tensor(7),
        "none": torch.empty(0, 3),
        "wide": torch.tensor([1.5], dtype=torch.float64),
    }
)


def test_safetensors_reads_what_is_written():
    content = b"".join(pieces(TENSORS, {"text": "Grüße"}))
    assert int.from_bytes(content[:8], "little") % 8 == 0
    found = safetensors.torch.load(content)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_metadata_comes_along(tmp_path):
    (tmp_path / "file").write_bytes(b"".join(pieces(TENSORS, {"text": "Grüße"})))
    with safetensors.safe_open(tmp_path / "file", "pt") as file:
        assert file.metadata() == {"text": "Grüße"}


@pytest.mark.parametrize(
    "changed",
    [
        {"one": torch.tensor(8)},
        {"one": torch.tensor([7])},
        {"one": torch.tensor(7).to(torch.int32)},
        {"two": torch.tensor(7)},
        {"flags": torch.tensor([True, True, True])},
    ],
)
def test_the_checksum_tells_tensors_apart(changed):
    assert checksum("text", TENSORS | changed) != checksum("text", TENSORS)


def test_the_checksum_counts_the_text_and_not_the_order():
    assert checksum("other", TENSORS) != checksum("text", TENSORS)
    assert checksum("text", dict(reversed(TENSORS.items()))) == checksum("text", TENSORS)
