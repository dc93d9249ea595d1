"""Predictions and truth in, numbers out."""
