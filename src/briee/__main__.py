"""`python -m briee` is the program `briee`."""

from briee.cli import entry

entry()
