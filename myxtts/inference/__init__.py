"""9. Speech out: voices, texts in pieces, codes, and the sound made of them. Errors and settings need no TensorFlow."""
