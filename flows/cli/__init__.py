"""The command line `xc`."""
