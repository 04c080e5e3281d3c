"""The version of the installed distribution, as every command and every status reports it."""

from importlib.metadata import version

VERSION = version("fedgate")
