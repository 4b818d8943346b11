"""Latency models: from a batch's features to the milliseconds of its step. Pure: no clock, no bus, no torch."""
