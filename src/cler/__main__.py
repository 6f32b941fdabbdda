"""`python -m cler` is the `cler` command."""

from cler.cli import main

main()
