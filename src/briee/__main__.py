"""`python -m briee`, and the console script `briee`."""

import os


def entry() -> None:
    """Run the command line; Ctrl-C while it is imported prints one word."""
    try:
        from briee.cli.main import entry as run
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(130)
    run()


if __name__ == "__main__":
    entry()
