"""`python -m briee`."""

from briee.cli.main import entry

entry()
