"""What K is, one file a representation."""
