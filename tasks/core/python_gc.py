"""How often Python's garbage collector searches for objects that nothing but each other refers to."""

import gc

THRESHOLD = 50_000    # objects made more than freed, between two collections; Python's default is 700


def collect_rarely() -> None:
    """Raise the collector's threshold, so that imports cause few collections.

    The libraries of a run make a million objects that stay, and all of them were searched again and again while they
    were imported: 2.4 s of the 14.7 s of a processor of a run on 1,200 texts. For processes of this project alone, as
    the setting is of a whole process.
    """
    gc.set_threshold(THRESHOLD)
