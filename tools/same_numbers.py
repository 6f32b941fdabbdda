"""Does this tree train to the same bits as an older commit? Every method × regularizer, on a small stream, on a CPU.

    python tools/same_numbers.py record build/now.json                      # this tree
    git worktree add build/before COMMIT
    PYTHONPATH=build/before/src python tools/same_numbers.py record build/before.json
    python tools/same_numbers.py compare build/before.json build/now.json

What is compared are the SHA-256 of every state tensor that the older commit had, by content and shape, of the run's
generator, and the accuracies. Names may change and tensors may be added; none may be lost or differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

LOOPS = {"inner": 2, "slow_steps": 2, "fast_steps": 2, "inversion_steps": 3, "refinement_epochs": 1, "noise": 8}
"""Shorter loops inside a step, of the methods that have them."""
VARIANTS = {"pcr": ["hpcr"], "xder": ["released"], "cope": ["text"], "lwf-mc": ["released"], "r-dfcil": ["text"]}
"""Variants that are not the default."""


def find(*places: str) -> Any:
    """A name at the first of some places, the newest first, that a commit has it at."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"found none of {', '.join(places)}")


def toy_data() -> Any:
    """Six classes of random pixels, 14×14."""
    image_data = find("cler.data.images:ImageData")
    generator = torch.Generator().manual_seed(0)

    def pixels(count: int) -> torch.Tensor:
        return torch.randint(256, (6 * count, 3, 14, 14), generator=generator).to(torch.uint8)

    labels = {count: torch.arange(6).repeat_interleave(count) for count in (20, 5)}
    names = tuple(f"class {number}" for number in range(6))
    return image_data("toy", pixels(20), labels[20], pixels(5), labels[5], names, (0.5,) * 3, (0.25,) * 3)


def record(path: Path) -> None:
    """Train all pairs, and write what they have become."""
    torch.set_num_threads(1)
    build_run = find("cler.runs.build:build_run", "cler.experiments.build:build_run")
    make_settings = find(
        "cler.config.making:make_settings",
        "cler.config.settings:make_settings",
        "cler.experiments.settings:make_settings",
    )
    train = find("cler.engine:train")
    methods, regularizers = find("cler.methods:METHODS"), find("cler.regularizers:REGULARIZERS")
    data, digests = toy_data(), {}
    for method in methods:
        for regularizer in ("none", "rotation", "jigsaw", "barlow-twins"):
            if regularizer != "none" and regularizer not in regularizers:
                continue
            for variant in [None, *VARIANTS.get(method, [])]:
                if variant == "released" and method == "xder" and regularizer == "barlow-twins":
                    continue  # refused
                own = {name: value for name, value in LOOPS.items() if name in vars(methods[method].Options())}
                own |= {} if variant is None else {"variant": variant}
                changes = {"tasks": 3, "width": 4, "lr": 0.02, "batch": 8}
                changes |= {"replay_batch": 8, "buffer": 24} if methods[method].replays else {}
                common = {"method": method, "regularizer": regularizer, "dataset": "cifar10-sample"}
                settings = make_settings(**common, **changes, **own)
                run = build_run(settings, 3, data)
                train([run])
                name = "+".join(filter(None, (method, regularizer, variant)))
                digests[name] = digest(run)
                print(name, len(digests[name]["tensors"]), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(digests, indent=1))


def digest(run: Any) -> dict[str, Any]:
    """What a run is: a line for each tensor of its state, the generator's, the accuracies."""
    tensors = run.state().tensors
    return {
        "tensors": {name: f"{list(each.shape)} {sha(each)}" for name, each in tensors.items()},
        "generator": sha(run.generator.get_state()),
        "accuracy": run.accuracy,
    }


def sha(tensor: torch.Tensor) -> str:
    """Of the bytes."""
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{str(tensor.dtype).removeprefix('torch.')} {hashlib.sha256(raw).hexdigest()}"


def compare(before: Path, now: Path) -> int:
    """How many pairs differ; says which, and in what."""
    old, new = (json.loads(path.read_text()) for path in (before, now))
    differing = 0
    for pair, was in old.items():
        has = new.get(pair)
        if has is None:
            print(f"{pair}: not there any more")
            differing += 1
            continue
        left = Counter(was["tensors"].values()) - Counter(has["tensors"].values())
        lost = [name for name, line in was["tensors"].items() if line in left and not name.startswith("run.order")]
        said = [f"tensors {', '.join(lost[:6])}"] if lost else []
        said += [key for key in ("generator", "accuracy") if was[key] != has[key]]
        if said:
            print(f"{pair}: {'; '.join(said)}")
            differing += 1
    print(f"{len(old)} pairs, {sum(len(one['tensors']) for one in old.values())} tensors: {differing} pairs differ")
    return differing


def main() -> None:
    """`record FILE` or `compare BEFORE NOW`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    if given.what == "record":
        record(*given.files)
    else:
        sys.exit(compare(*given.files) > 0)


if __name__ == "__main__":
    main()
