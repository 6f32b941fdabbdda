"""Run settings, results on disk, and comparisons between them."""
