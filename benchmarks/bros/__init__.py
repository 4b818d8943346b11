"""BROS's evaluation (section 7 of the paper) in the simulator: each figure one command that writes a table and a
picture. ``python -m benchmarks.bros --help``."""
