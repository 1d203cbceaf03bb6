"""How often Python's garbage collector searches all objects for those that nothing but each other refers to."""

import gc

FULL = 1000    # collections of younger objects between two of all; Python's default is 10


def collect_rarely() -> None:
    """Let few collections search all objects.

    The libraries of a run make a million objects that stay, and all of them were searched again and again while they
    were imported: 2 s of the 14.7 s of a processor of a run on 1,200 texts. Young objects are searched as often as
    before: what a step of training leaves behind is warm memory for the next. For processes of this project alone, as
    the setting is of a whole process.
    """
    gc.set_threshold(*gc.get_threshold()[:2], FULL)
