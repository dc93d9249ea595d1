"""Kinds of tasks, one file each: the only places that know how such a task is done."""
