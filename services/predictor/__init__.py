"""Latency samples in, fitted latency models out; never on the path of a step."""
