"""4. Files to host batches: which clips there are, which can be used, in which order, and their samples.

`ljspeech` reads metadata, `scan` looks at every clip once and remembers it (`index`), `drops` says what was set aside,
`split` sets a validation set apart, `text_ids` tokenises, `buckets` and `sampler` decide which clips make which batch,
`run_data` does all of this for a configuration and keeps it for the other processes of the run, `reader` gives the
batches, loaded by one of three engines (`open_engine` says which). Only modules that handle `tf.data` import TensorFlow.
"""
