"""Kinds of load, each what one sort of client does again and again."""
