"""What `myxtts bench` runs of a training."""
