"""What several lessons need."""
