"""`python -m edge_vl` is `edge-vl`."""

from edge_vl.cli import main

main()
