"""Things tests share."""
