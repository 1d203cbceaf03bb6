"""The command `xc`."""
