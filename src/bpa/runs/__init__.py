"""Configurations and their wiring: data → host → metrics → records."""
