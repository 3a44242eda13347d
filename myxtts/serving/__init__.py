"""10. Speech over HTTP: one model, one thread that owns it, and the requests that queue for it."""
