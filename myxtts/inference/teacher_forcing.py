"""How often a GPT that is led by a recording's true codes says the right next one, under the conditions it speaks in.

Shapes: S samples, M codes, L positions, P prompt vectors, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.voices import Voice
from myxtts.models.sequences import check_length, frame_audio
from myxtts.models.xtts import XTTS


@dataclass(frozen=True)
class CodeHits:
    """Codes that were predicted rightly, of how many."""

    correct: int
    count: int


class TeacherForcing:
    """Leads a model through recordings."""

    def __init__(self, xtts: XTTS):
        self._gpt = xtts.gpt
        size = xtts.gpt.size
        self._count = tf.function(
            self._trace_count,
            input_signature=[
                tf.TensorSpec([1, None, size.width]),
                tf.TensorSpec([1, None], tf.int32),
                tf.TensorSpec([1, None], tf.int32),
            ],
            autograph=False,
        )

    @property
    def traces(self) -> int:
        """How often it was compiled."""
        return int(self._count.experimental_get_tracing_count())

    def count_hits(self, codes_M: NDArray[np.int32], ids: list[int], voice: Voice) -> CodeHits:
        """The hits among a clip's own codes, its end included; raises `SequenceTooLongError` for more than the model takes."""
        # Checked on what is known: inside the graph no length is.
        size = self._gpt.size
        check_length("A clip", len(codes_M), size.max_audio_tokens - 2, "codes")
        check_length("A text", len(ids), size.max_text_tokens, "tokens")
        prompt_1PC, ids_1T = tf.constant(voice.prompt_PC[None]), tf.constant([ids], tf.int32)
        return CodeHits(int(self._count(prompt_1PC, ids_1T, tf.constant(codes_M[None], tf.int32))), len(codes_M) + 1)

    def _trace_count(self, prompt_1PC: Any, ids_1T: Any, codes_1M: Any) -> Any:
        # As it speaks, not as it is trained: there the end of the text is hidden.
        text = self._gpt.frame_prefix_text(ids_1T)
        audio = frame_audio(codes_1M, tf.shape(codes_1M)[1:], self._gpt.size)
        _, logits_1LV = self._gpt.compute_logits(prompt_1PC, text, audio)
        hits_1L = tf.argmax(logits_1LV, -1, output_type=tf.int32) == audio.targets_BL
        # The codes and one stop token; the further ones say nothing new.
        return tf.reduce_sum(tf.cast(hits_1L[:, : tf.shape(codes_1M)[1] + 1], tf.int32))
