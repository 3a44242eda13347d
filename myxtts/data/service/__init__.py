"""Reading through a tf.data service: its servers, and the trainer's side of it."""
