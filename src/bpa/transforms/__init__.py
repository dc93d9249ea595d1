"""Rows in, rows out: the transform of this library, its alternatives, and what they all promise."""
