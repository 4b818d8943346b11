"""Measures what steps cost on each new kind of executor, and says how long a step may take."""
