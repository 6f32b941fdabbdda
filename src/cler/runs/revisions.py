"""The revision of the code that decides the numbers of a run.

A part of the package has a number, raised by hand when it makes runs come out differently: `revision` of a method, a
regularizer, a teacher, a network, a stream, and `cler.engine.REVISION` for what all runs share. For code outside the
package, where nobody raises a number, it is a hash of the source (`cler.runs.sources`), which comments and renames do
not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cler.config.registry import DOMAINS, METHODS, NETWORKS, REGULARIZERS, STREAMS, TEACHERS, made_of
from cler.config.settings import Settings
from cler.engine import REVISION
from cler.runs.sources import hash_of
from cler.streams.domain_incremental import Domains

Revisions = Mapping[str, int | str]


def revisions(settings: Settings) -> dict[str, int | str]:
    """The revision of each part of the code that decides the numbers of a run with these settings."""
    found = {"engine": REVISION, "method": revision_of(METHODS[settings.method])}
    if settings.network in NETWORKS:  # else it is the method's own, or somebody's object
        found["network"] = revision_of(NETWORKS[settings.network])
    if added := [revision_of(REGULARIZERS[name]) for name in settings.regularizers]:
        found["regularizer"] = added[0] if len(added) == 1 else "+".join(map(str, added))
    if settings.teacher in TEACHERS:
        found["teacher"] = revision_of(TEACHERS[settings.teacher])
    found["stream"] = revision_of(STREAMS[settings.stream])
    if (domains := settings.options.get("domains", "")) in DOMAINS:
        found["domains"] = revision_of(DOMAINS[domains])
    return found


def revision_of(entry: Any) -> int | str:
    """The revision of what is registered: a number inside the package; outside it, with a hash of its source."""
    number: int = getattr(entry, "revision", 1)
    made, given = made_of(entry), getattr(entry, "given", None)
    if isinstance(made, nn.Module):  # as it is, weights and all
        return hashlib.sha256(f"{made}{_digest(made)}".encode()).hexdigest()[:16]
    hashed = hash_of(*entry.transforms) if isinstance(entry, Domains) else hash_of(made if given is None else given)
    return number if hashed is None else f"{hashed}.{number}"


def _digest(module: nn.Module) -> str:
    """A hash of a module's weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def differing(settings: Mapping[str, Any], before: Revisions, now: Revisions) -> list[str]:
    """What differs between the code of two runs, as 'er-ace revision 1, this is 2'; what is not known does not."""
    return [
        f"{settings.get(part, part)} revision {before[part]}, this is {now[part]}"
        for part in now
        if part in before and before[part] != now[part]
    ]
