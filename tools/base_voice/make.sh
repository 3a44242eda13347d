#!/bin/sh
# Makes the voice that comes with the package again: sh tools/base_voice/make.sh TEXTS OUT [SENTENCES PHRASES CODEC_UPDATES GPT_UPDATES]
# Every stage goes on where it was interrupted; what is finished is not done again. What it needs and how long it takes: README.md here.
set -eu
texts=$1 out=$2 sentences=${3:-22000} phrases=${4:-15000} codec_updates=${5:-21500} gpt_updates=${6:-9000}
python=${PYTHON:-.venv/bin/python}
settings="--config tools/base_voice/settings.yaml --train-data $out/corpus --rehearsal --mode single"

$python -m tools.base_voice.make_corpus "$texts" --voice slt --count "$sentences" --phrases "$phrases" --out "$out/corpus"
# shellcheck disable=SC2086
$python train_main.py $settings --stage codec --max-steps "$codec_updates" --checkpoint-dir "$out/codec"
# shellcheck disable=SC2086
$python -m myxtts.cli.main data-prepare $settings --codec "$out/codec"
# shellcheck disable=SC2086
$python train_main.py $settings --codec "$out/codec" --max-steps "$gpt_updates" --checkpoint-dir "$out/gpt"
clip=$(find "$out/corpus/wavs" -name 'slt_[0-9]*.wav' | sort | head -n 1)
rm -rf "$out/voice"
$python -m tools.base_voice.export "$out/gpt" "$out/voice" --voice "slt=$clip" \
  --notice "Speech of Festival's voice cmu_us_slt_arctic_hts (BSD-like licence) taught it."
$python -m myxtts.cli.main synthesize --rehearsal --checkpoint "$out/voice" --text "You were just in time." --out "$out/hello.wav"
