"""The clustering hosts."""
