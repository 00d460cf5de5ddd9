"""Tools for the people who build edge_vl; not part of the package."""
