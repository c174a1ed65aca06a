"""`python -m roundoff_server` is `roundoff serve`."""

import typer

from .commands import serve

if __name__ == "__main__":
    typer.run(serve)
