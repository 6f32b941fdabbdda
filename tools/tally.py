"""What came of some cases, as the fuzzer and the attack tell it."""

from __future__ import annotations

from collections import Counter


def in_words(name: str, tally: Counter[str]) -> str:
    """A line about the cases of this name: how many, and how many of them were accepted, refused and found wrong."""
    counts = f"{tally['accepted']} accepted, {tally['refused']} refused, {tally['found']} findings"
    return f"{name}: {tally.total()} cases, {counts}"
