"""Who trains together."""
