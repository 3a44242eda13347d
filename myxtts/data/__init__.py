"""4. Files to host batches: which clips there are, which can be used, in which order, and their samples.

`ljspeech` reads metadata, `scan` looks at every clip once and remembers it (`index`), `texts` tokenises, `drops` says what was set aside,
`buckets`, `sampler` and `order` decide which clips make which batch, `run_data` does all of this for a configuration and keeps it
for the other processes of the run, `host_batches` gives the batches, which `loaders` load. `code_cache` keeps the codes of clips.
Only `loading_tf` and `dataset_optimizer` import TensorFlow.
"""
