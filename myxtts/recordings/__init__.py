"""11. From recordings to a corpus: cut at pauses, written down, judged, and set aside where doubtful."""
