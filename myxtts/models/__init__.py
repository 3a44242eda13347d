"""5. The network: XTTS v2 as Keras layers. Numbers in, numbers out: no device, file or thread."""
