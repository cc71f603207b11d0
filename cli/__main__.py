"""`python -m cli`: the same as `orca`."""

from cli.main import main

main()
