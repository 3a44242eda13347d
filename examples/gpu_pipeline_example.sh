#!/usr/bin/env bash
# The pipeline of two devices from the command line: its plan first, then a short run.
#
#   bash examples/gpu_pipeline_example.sh
#   bash examples/gpu_pipeline_example.sh --train-data my_voice --data-gpu 1 --model-gpu 0 --max-steps 5000
#
# Flags are those of train_main.py and win over the ones below. Without two cards the same roles are rehearsed on the CPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-$(command -v .venv/bin/python || command -v python3)}

cards=$( (nvidia-smi -L 2>/dev/null || true) | wc -l)
rehearsal=()
if [ "$cards" -lt 2 ]; then
  echo "Two cards are needed, $cards found: rehearsing on the CPU."
  rehearsal=(--rehearsal)
fi

# Card 0 prepares, card 1 trains. The host keeps up to 50 batches ready. Training waits for the first batch as long as that
# takes, then at most 2 seconds for the other slots on the model's card to fill.
flags=(
  --data-gpu 0 --model-gpu 1 --buffer-size 50 --model-start-delay 2.0
  --model-size tiny --codec-steps 40 --max-steps 20 --checkpoint-dir runs/gpu_pipeline
  "${rehearsal[@]}" "$@"
)

"$PYTHON" train_main.py "${flags[@]}" --print-plan
"$PYTHON" train_main.py "${flags[@]}"
