"""Records in, tables, figures and pages out; nothing is recomputed here."""
