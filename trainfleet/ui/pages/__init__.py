"""What each page shows: plain values for its template."""
