"""The figures of papers, in the simulator: each is a table and a picture in the paper's page.
``python -m benchmarks.figures --help``."""
