"""Several processes that answer at one port: `xc serve --workers N`."""
