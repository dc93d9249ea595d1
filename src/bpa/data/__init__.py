"""Files in, records out."""

from __future__ import annotations

from bpa.data.catalog import CATALOG, CatalogEntry, digits, embedded_sketches

__all__ = ["CATALOG", "CatalogEntry", "digits", "embedded_sketches"]
