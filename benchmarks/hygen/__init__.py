"""HyGen's evaluation (section 5 of the paper) in the simulator: each figure one command that writes a table and a
picture. ``python -m benchmarks.hygen --help``."""
