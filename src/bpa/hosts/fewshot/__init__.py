"""The fewshot hosts."""
