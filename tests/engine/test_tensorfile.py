import errno
import os
import resource

import pytest
import safetensors.torch
import torch

from cler.engine.tensorfile import checksum, on_host, pieces, read
from cler.errors import DamagedError

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


CONTENT = b"".join(pieces(TENSORS, {"text": "Grüße"}))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


def assert_whole(found):
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_safetensors_reads_what_is_written(file):
    assert int.from_bytes(CONTENT[:8], "little") % 8 == 0
    assert_whole(safetensors.torch.load(CONTENT))
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() == {"text": "Grüße"}


def test_tensors_and_metadata_are_read_into_memory_of_their_own(file):
    tensors, metadata = read(file)
    file.write_bytes(b"")
    assert_whole(tensors)
    assert metadata == {"text": "Grüße"}


def test_a_path_that_is_not_utf_8_is_as_good_as_any(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.write_bytes(CONTENT)
    assert_whole(read(path)[0])


def test_one_free_file_descriptor_is_enough_and_none_says_nothing_about_the_file(file):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(file, os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, before[1]))
        tensors, _ = read(file)
        with open(file), pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            read(file)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert_whole(tensors)


def test_a_file_that_is_none_is_told_from_one_that_cannot_be_read(file, tmp_path):
    foreign = safetensors.torch.save({"a": torch.zeros(2, dtype=torch.complex64)})
    unknown = foreign.replace(b"C64", b"F99")
    for content in (b"", CONTENT[:7], CONTENT[:-1], CONTENT + b"x", b"\x7f" * 100, foreign, unknown):
        file.write_bytes(content)
        with pytest.raises(DamagedError):
            read(file)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "missing")


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
