"""The command line: one module for each command, with a function `run(argv) -> exit code`.

`main` finds the command and reads its options. This room may import every other one; JAX is imported only
after the arguments were understood.
"""

COMMANDS = {
    "train": "train an agent in a run directory",
    "sweep": "carry out many runs, here or on a cluster",
    "evaluate": "play episodes with the policy of a run",
    "plan": "plan for another reward, after a reward-free run",
    "compare": "compare algorithms, with intervals over seeds",
    "leaderboard": "make the leaderboard of a suite from tables",
    "submit": "check runs for the leaderboard",
    "report": "write one HTML file about runs, and its figures",
    "watch": "show a run in the terminal while it goes on",
    "doctor": "say whether an environment suits BRIEE",
    "runs": "list run directories with their state",
    "envs": "list the environments and their arguments",
    "reproduce": "run an experiment and draw its figure",
    "bench": "measure speed against the machine's own limit",
}
"""Commands with a summary each; the module `briee.cli.NAME` is imported when it is called."""
