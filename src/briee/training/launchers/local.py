"""Jobs on this machine, some at a time."""

import threading
from collections import deque
from collections.abc import Sequence

from briee.training.launchers import Board, Job, carry_out

ELSEWHERE_SECONDS = 1.0
"""A job that another launcher has is asked for again after this time."""


def launch(jobs: Sequence[Job], workers: int, board: Board) -> None:
    """Carry out all jobs; Ctrl-C stops the children, which write their checkpoints first."""
    queue, stop, ended = deque(jobs), threading.Event(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                job = queue.popleft()
            except IndexError:
                ended.set()
                return
            board.started(job.name)
            outcome = carry_out(job, stop)
            if outcome is None:
                board.waits(job.name)
                queue.append(job)
                stop.wait(ELSEWHERE_SECONDS)
            else:
                board.ended(job.name, outcome)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(jobs)))]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            board.show()
            ended.wait(0.2)  # Ctrl-C during `join` would mark a thread as ended that is not
            ended.clear()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
