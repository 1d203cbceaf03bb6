"""How often Python searches for objects that nothing but each other refers to."""

import gc

ALLOCATED = 50_000    # objects more than were freed, between two searches; Python's default is 700


def search_seldom() -> None:
    """Search for garbage after so many objects as no import of a library makes.

    The libraries of a run make a million objects that stay, and all of them were searched again and again while they
    were imported: 2.4 s of the 14.7 s of a processor of a run on 1,200 texts. For processes of this project alone, as
    the setting is of a whole process.
    """
    gc.set_threshold(ALLOCATED)
