"""`python -m briee.training.launchers.child train ...`: a run that ends with its launcher.

The launcher holds the standard input open. Once that is closed, by intention or because the launcher was
killed, the run is interrupted: it writes its checkpoint and ends, and leaves its core to others.
"""

import os
import runpy
import signal
import threading

GRACE_SECONDS = 60.0


def end_with_launcher() -> None:
    """Wait until nobody holds the standard input open, then interrupt this process."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(GRACE_SECONDS)
    os._exit(130)


def limit_memory(gigabytes: str) -> None:
    """An allocation beyond the limit fails in this process, and nowhere else."""
    import resource

    size = int(float(gigabytes) * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


if __name__ == "__main__":
    if os.environ.get("BRIEE_MEMORY_GB"):
        limit_memory(os.environ["BRIEE_MEMORY_GB"])
    if hasattr(signal, "SIGUSR2"):  # SLURM's warning is for the launcher
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    threading.Thread(target=end_with_launcher, daemon=True).start()
    runpy.run_module("briee", run_name="__main__")
