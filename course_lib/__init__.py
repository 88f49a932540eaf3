"""The library behind the course: what a lesson shows is here, tested and timed.

Layers, each importing only what stands to its left:
`pi`, `theory`, `training` ← `comm` ← `parallel` ← `fast` ← `exercises` ← `classroom` ← `lessons` ← `cli`.
"""
