"""The steps of a rehearsal, from the first preview to the final destroy, and the faults that they inject."""
