#!/usr/bin/env bash
# Finds out why the GPU is not busy, measures settings that suit this machine,
# and says what to run next. It writes myxtts_tuned.yaml and myxtts_tuned.env.sh
# into the folder it is started in, and changes nothing else.
#
#   bash quick_fix_gpu_utilization.sh [--config FILE] [--skip-speed-test] [flags]
#
# flags: any of `python train_main.py`. --skip-speed-test looks only: nothing is
# measured, and nothing is written. The exit code is that of the diagnosis:
# 0 nothing serious, 1 something serious was found, 2 it could not be made.
set -uo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    python="$(command -v "$root/.venv/bin/python" || command -v python3 || true)"
fi

# What the other commands take, too: --skip-speed-test is of the diagnosis alone.
flags="" words=() measures=yes
for word in "$@"; do
    if [[ "$word" == -h || "$word" == --help ]]; then
        # The comment at the top, up to the first line that is none.
        sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
    elif [[ "$word" == --skip-speed-test ]]; then
        measures=""
    else
        flags+=" $(printf '%q' "$word")"
        words+=("$word")
    fi
done

say() { printf '\n== %s\n' "$1"; }

say "1/5 Prerequisites"
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

say "2/5 Diagnosis"
"$python" "$root/utilities/diagnose_gpu_utilization.py" "$@"
code=$?
if ((code > 1)); then
    echo "The diagnosis could not be made: see above." >&2
    exit 2
fi

say "3/5 Settings for this machine"
train="python train_main.py$flags"
if [[ -z "$measures" ]]; then
    echo "Not measured, because of --skip-speed-test. To measure them, which takes some minutes:"
    echo "  python utilities/configure_max_gpu_utilization.py --verify$flags"
elif "$python" "$root/utilities/configure_max_gpu_utilization.py" --verify ${words[@]+"${words[@]}"}; then
    # The file holds what the flags gave, too.
    train="source myxtts_tuned.env.sh && python train_main.py --config myxtts_tuned.yaml"
else
    echo "No settings were found: see above. The command below uses the defaults." >&2
fi

say "4/5 What to do"
if ((code == 0)); then
    echo "Nothing serious was found. If the diagnosis lists an issue above, it is a small one."
else
    echo "Start with issue 1 of the diagnosis, then run this again: one cause often hides another."
fi
echo "Which stage of a training step limits it, with a page and a trace:"
echo "  python utilities/dual_gpu_bottleneck_profiler.py --html profile.html --trace profile.json$flags"

say "5/5 Training, and watching it"
echo "  $train"
echo "  nvidia-smi dmon -s pucm    # power, use, clocks and memory of the cards, once a second"
exit "$code"
