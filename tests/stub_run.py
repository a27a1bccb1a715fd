"""A run without JAX, for tests of launchers: `stub_run.py DIR CONFIG SECONDS [raise|die|full]`.

It counts episodes in metrics.csv, goes on where it was stopped, ends with its launcher, writes config.json
and summary.json as a real run does. DIR.starts gets one line per process that worked.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

CHILD = Path(__file__).parents[1] / "src" / "briee" / "training" / "launchers" / "child.py"
HEADER = "iteration,episodes,env_steps,eval_return,decoder_accuracy\n"


def main(folder: Path, config: dict, seconds: float, mode: str = "") -> None:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    leash = runpy.run_path(str(CHILD))["end_with_launcher"]
    threading.Thread(target=leash, daemon=True).start()
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.starts", "a") as file:
        file.write(f"{os.getpid()}\n")
    (folder / "config.json").write_text(json.dumps(config))
    metrics = folder / "metrics.csv"
    if not metrics.exists():
        metrics.write_text(HEADER)
    done, last = len(metrics.read_text().splitlines()) - 1, config["episodes"] // 10
    for iteration in range(done + 1, last + 1):
        time.sleep(seconds / last)
        if mode == "raise" and iteration == 3:
            raise ValueError("the environment is broken")
        if mode == "full" and iteration == 3:
            Path("/dev/full").write_text("x")
        with metrics.open("a") as file:
            file.write(f"{iteration},{10 * iteration},{20 * iteration},{config['seed'] / iteration},\n")
        if mode == "die" and iteration == 3 and done == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    about = {key: config[key] for key in ("algorithm", "preset", "env", "horizon", "seed", "episodes")}
    summary = about | {"solved": False, "finished": True, "env_steps": 2 * config["episodes"]}
    (folder / "summary.json").write_text(json.dumps(summary | {"seconds": {"total": seconds}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
