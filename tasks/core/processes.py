"""Names of processes that stay the same when the clock is set."""

import psutil


def process_name(pid: int) -> str:
    """Return a name that a later process with the same pid does not have; "" where the process has ended.

    It is the pid and the seconds from the machine's start to the process's.
    """
    try:
        # psutil adds the machine's start, which moves when the clock is set, to what the kernel tells
        return f"{pid} {psutil.Process(pid).create_time() - psutil.boot_time():.2f}"
    except psutil.Error:
        return ""
