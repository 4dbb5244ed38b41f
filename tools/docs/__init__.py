"""The documentation site (mkdocs.yml): pages above docs/, and links to files of the repository."""
