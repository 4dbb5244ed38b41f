"""What both versions of a Helm chart render, and how it differs (`trainfleet.rehearsal.diff.charts`)."""
