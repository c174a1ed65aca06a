"""roundoff: precision diagnostics for 16-bit training."""

from ._version import __version__ as __version__
