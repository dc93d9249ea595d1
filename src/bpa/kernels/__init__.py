"""What K is, one file a representation, and one table that chooses among them and can say why not."""

from __future__ import annotations

from bpa.kernels._table import Explanation, explain, explain_plan

__all__ = ["Explanation", "explain", "explain_plan"]
