"""The paper that introduced CLER: its settings and numbers as data, its tables and figures 1 and 3 from our runs."""
