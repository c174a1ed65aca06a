"""Engine, migrations, and fast writing of rows."""

from .engine import Database as Database, explained as explained
from .errors import DatabaseUnusableError as DatabaseUnusableError
from .migrate import known_revision as known_revision, require_current as require_current, upgrade as upgrade
