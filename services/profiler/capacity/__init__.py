"""Capacity planning: the fewest GPUs that keep the SLOs, and the offline work beside (Echo section 5.4)."""
