"""One file per framework; nothing else imports them, and each imports its framework only when it is imported."""
