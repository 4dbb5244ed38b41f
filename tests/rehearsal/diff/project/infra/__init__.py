"""The project's own package, which has to win over the installed one of the same name."""
