"""Long measurements, apart from the tests. `python -m benchmarks` lists them.

A benchmark is a module of this package with `run(quick: bool) -> Result`; the first line of its docstring says what it
measures. It reports its progress on standard error.
"""
