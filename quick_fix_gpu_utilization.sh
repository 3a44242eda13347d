#!/usr/bin/env bash
# Finds out why the GPU is not busy, and says what to do and what to run next. It changes nothing.
#
#   bash quick_fix_gpu_utilization.sh [--config FILE] [any flag of `python train_main.py`]
#
# The exit code is that of the diagnosis: 0 nothing serious, 1 something serious was found, 2 it could not be made.
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    python="$(command -v "$root/.venv/bin/python" || command -v python3 || true)"
fi

# What the other commands take, too: --skip-speed-test is of the diagnosis alone.
flags=""
for word in "$@"; do
    [[ "$word" == --skip-speed-test ]] || flags+=" $(printf '%q' "$word")"
done

say() { printf '\n== %s\n' "$1"; }

say "1/4 Prerequisites"
if [[ -z "$python" ]]; then
    echo "No Python was found. Install Python 3.11 or newer, then run \`make setup\`." >&2
    exit 2
fi
if ! PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" "$python" -c 'import sys, myxtts.cli.main; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python cannot run MyXTTS (the reason is above, or it is older than 3.11). Run \`make setup\`." >&2
    exit 2
fi
echo "Python   $("$python" --version 2>&1)"
if driver="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)"; then
    echo "$driver" | sed 's/^/GPU      /'
else
    echo "GPU      nvidia-smi does not answer: the diagnosis says why"
fi

say "2/4 Diagnosis"
"$python" "$root/utilities/diagnose_gpu_utilization.py" "$@"
code=$?
if ((code > 1)); then
    echo "The diagnosis could not be made: see above." >&2
    exit 2
fi

say "3/4 What to do"
if ((code == 0)); then
    echo "Nothing serious was found. What is worth changing is in the list above."
else
    echo "Start with issue 1 of the list above, then run this again: one cause often hides another."
fi
echo "Which stage of a training step limits it, with a page and a trace:"
echo "  python utilities/dual_gpu_bottleneck_profiler.py --html profile.html --trace profile.json$flags"

say "4/4 Training, and watching it"
echo "  python train_main.py$flags"
echo "  nvidia-smi dmon -s pucm    # power, use, clocks and memory of the cards, once a second"
exit "$code"
