"""The built-in depth policies, one file each; the core finds them through their entry points."""
