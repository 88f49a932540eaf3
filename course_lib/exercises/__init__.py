"""What each exercise asks, hints, solves and checks."""
