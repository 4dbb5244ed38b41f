"""What providers do with changes, for every type of a package: generated tables, and those of a project."""
