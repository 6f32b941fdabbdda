import pytest
from torch import nn

from cler.nets.cosine import TEMPERATURE, CosineClassifier


def test_proxies_start_anew_whatever_the_layer_was():
    """A layer of zeros, as some pretrained networks have, would have no direction."""
    layer = nn.Linear(8, 3)
    nn.init.zeros_(layer.weight)
    proxies = CosineClassifier(layer, 4)
    assert proxies.bias is None
    assert proxies.weight.shape == (4, 8)
    assert proxies.weight.all()
    logits = proxies(3 * proxies.weight)
    assert logits.diagonal().tolist() == pytest.approx([1 / TEMPERATURE] * 4, rel=1e-4)
