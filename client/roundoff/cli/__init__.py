"""The command `roundoff`: thin commands over the client. More of them come in as plug-ins."""

from .application import main as main
