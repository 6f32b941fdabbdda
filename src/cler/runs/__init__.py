"""Runs: jobs, their folders, results on disk, comparison, and the processes that train them."""
