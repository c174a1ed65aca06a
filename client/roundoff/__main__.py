"""`python -m roundoff` is the command `roundoff`."""

from roundoff.cli import main

if __name__ == "__main__":
    main()
