"""The retrieval hosts."""
