"""What can be wrong with a database, in words for the person who starts the server."""


class DatabaseUnusableError(OSError):
    """The database cannot be used; the message names it and says what to do."""
