"""What must be said when Coqui's published weights are imported."""

XTTS_WEIGHTS_NOTICE = (
    "The XTTS v2 weights that Coqui published are under the Coqui Public Model License (CPML): they, models fine-tuned "
    "from them, and the speech made with either may be used for non-commercial purposes only. The licence is in the "
    "file LICENSE.txt beside the published weights. MyXTTS' own licence covers its code, not these weights."
)
