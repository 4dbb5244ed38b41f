"""Run Checkov over an applied rehearsal, and compare its findings with the table of exceptions."""
