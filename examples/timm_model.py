"""CLER on networks from timm: a residual network, which outputs maps, and a vision transformer, which outputs tokens.

Needs timm: pip install timm.
"""

import timm
import torch
import torch.nn.functional as F

import cler

torch.manual_seed(0)
images, labels = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))  # yours go here, normalized


def train(name: str, network: torch.nn.Module, regularizer: cler.Equivariant) -> None:
    """Three steps on the same images."""
    optimizer = torch.optim.AdamW([*network.parameters(), *regularizer.parameters()], lr=1e-3)
    for step in range(3):
        loss, pretext = F.cross_entropy(network(images), labels), regularizer(images)
        optimizer.zero_grad()
        (loss + pretext).backward()
        optimizer.step()
        print(f"{name}, step {step}: loss {loss.item():.3f}, pretext loss {pretext.item():.3f}")


resnet = timm.create_model("resnet18", num_classes=10)
train("resnet18", resnet, cler.Equivariant(resnet, "jigsaw", tap="layer3", head="layer4"))

transformer = timm.create_model(
    "vit_tiny_patch16_224", img_size=64, patch_size=8, depth=4, embed_dim=48, num_heads=3, num_classes=10
)
# the head is a copy of the last two blocks; their output is averaged over all tokens, including the class token
train("vit", transformer, cler.Equivariant(transformer, "rotation", tap="blocks.1", head="blocks.2:4"))
