"""`python -m runfold.cli`."""

from runfold.cli import main

main()
