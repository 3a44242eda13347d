"""4. Files to host batches: which clips there are, which can be used, and in which order.

`ljspeech` reads metadata, `scan` looks at every clip once and remembers it (`index`), `drops` says what was set aside,
`buckets` and `sampler` decide which clips make which batch. Only modules that handle `tf.data` import TensorFlow.
"""
