"""`python -m runfold.cli`."""

from runfold.cli.program import main

main()
