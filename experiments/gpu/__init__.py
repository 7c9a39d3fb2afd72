"""Commands for a machine with a GPU."""
