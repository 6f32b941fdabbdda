import pytest
import torch

from cler.nets.passes import images_at_once


@pytest.mark.parametrize(("side", "count"), [(8, 64), (32, 64), (64, 16), (84, 9), (224, 8), (1024, 8)])
def test_as_many_as_fit_into_a_cpus_caches(side, count):
    assert images_at_once((3, side, side), torch.device("cpu"), on_gpu=1000) == count


def test_a_gpu_takes_as_many_as_asked_for():
    assert images_at_once((3, 224, 224), torch.device("cuda"), on_gpu=500) == 500
