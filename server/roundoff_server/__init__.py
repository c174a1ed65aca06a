"""The roundoff server: takes batches, keeps them, answers history, raises alerts."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("roundoff")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0"
