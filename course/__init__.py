"""The course: its lessons, and the tools that make notebooks of them, check and run them."""
