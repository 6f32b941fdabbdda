"""What the hash of source code notices and what it does not."""

import pytest

from cler.runs.syntax import defined_names, fingerprint

CODE = '''
import torch
import torch.nn.functional as F
from torch import Tensor

from cler.memory import Reservoir


class Mine(Method):
    """A method."""

    title = "Mine"
    alpha: float = 0.5
    """How much of it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.buffer = Reservoir(setup.size, kind="plain")

    def observe(self, batch: Batch) -> Tensor:
        """Learn."""
        logits, other = self.network(batch.images), batch.labels
        if len(other) < 2:
            raise ValueError("a batch needs two images")
        loss = F.cross_entropy(logits, other, reduction="sum") - self.alpha * logits.mean()  # why
        self.descend(loss)
        return loss
'''


def changed(*pairs):
    text = CODE
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    "pairs",
    [
        [("# why", "# because of something else")],
        [("logits.mean()  # why", "(\n            logits.mean()\n        )")],
        [('"""Learn."""', '"""Learn a batch\n\n        of images."""')],
        [('        """Learn."""\n', "")],
        [('    """How much of it."""\n', "")],
        [("batch: Batch) -> Tensor:", "batch):"), ("alpha: float = 0.5", "alpha = 0.5")],
        [('"a batch needs two images"', 'f"at least two images, not {len(other)}"')],
        [('"Mine"', '"Mine, improved"')],
        [("loss", "penalized")],
        [("logits", "scores"), ("other", "targets")],
        [("Mine", "Ours"), ("alpha", "share")],
        [("self.buffer", "self.memory")],
        [("Reservoir", "Buffer")],
        [("functional as F", "functional as functions"), ("F.cross", "functions.cross")],
        [("from torch import Tensor\n", "")],
        [("alpha: float = 0.5", "revision = 2\n    alpha: float = 0.5")],
    ],
)
def test_what_changes_nothing(pairs):
    assert fingerprint(changed(*pairs)) == fingerprint(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.5", "0.25"),
        ("0.5", "True"),
        ("< 2", "<= 2"),
        (" - self", " + self"),
        ("(logits, other,", "(other, logits,"),
        ("logits.mean()", "other.mean()"),
        ("logits.mean()", "logits.sum()"),
        ("F.cross_entropy", "F.nll_loss"),
        ('"sum"', '"mean"'),
        ("reduction=", "weight="),
        ('kind="plain"', 'kind="other"'),
        ("        self.descend(loss)\n", ""),
        ("import torch.nn.functional as F", "import torch.special as F"),
        ("            raise", "            pass  # raise"),
    ],
)
def test_what_may_change_numbers(old, new):
    assert fingerprint(changed((old, new))) != fingerprint(CODE)


def test_names_of_files_beside_it_can_be_renamed_too():
    base = "class Method:\n    def descend(self, loss): self.network = loss\n"
    renamed = changed(("descend", "step_on"), ("self.network", "self.backbone"))
    assert fingerprint(CODE) != fingerprint(renamed)
    new_base = base.replace("descend", "step_on").replace("network", "backbone")
    assert fingerprint(CODE, defined_names([base])) == fingerprint(renamed, defined_names([new_base]))


def test_a_method_of_tensors_is_not_a_field_of_ours_by_the_same_name():
    beside = defined_names(["class Views:\n    mean: float\n    std: float\n"])
    other = changed(("logits.mean()", "logits.std()"))
    assert fingerprint(CODE, beside) != fingerprint(other, beside)
