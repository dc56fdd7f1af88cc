"""`python -m servesim` is the command line."""

from servesim.cli import main

main()
