"""python -m flows.cli: the same as the command `xc`."""

from flows.cli.entry import main

if __name__ == "__main__":
    main()
