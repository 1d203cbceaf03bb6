"""The commands of `xc`; heavy imports wait until a command runs, so that help is fast."""
