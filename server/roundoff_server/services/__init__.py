"""What the server does: functions that take a session, and the query class that pages and routes share."""
