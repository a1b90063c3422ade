"""What travels, in bytes."""
