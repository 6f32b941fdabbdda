"""The paper: its settings and numbers as data, its tables from our runs, its figures 1 and 3."""
