"""10. Is the speech any good: sentences spoken anew, heard by judges, and compared with the recordings."""
