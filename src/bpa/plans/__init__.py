"""One set balanced once, asked later."""
