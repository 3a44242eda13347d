"""3. Speech in, the text half: cleaning, sentences, tokens and vocabularies. Never imports TensorFlow."""
