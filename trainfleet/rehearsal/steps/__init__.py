"""The steps of a rehearsal, from the first preview to the last delete, and the faults they inject."""
