"""What builds, checks and runs the lessons, and the `course` command."""
