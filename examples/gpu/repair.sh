#!/usr/bin/env bash
# The whole repair of one model on GPUs: check, diagnose, post-train with a control arm, diagnose again, certify.
#
#     TRAIN=train.jsonl HELD_OUT=held-out.jsonl examples/gpu/repair.sh MODEL examples/gpu/mamba2-130m.yaml OUT
#
# MODEL: a directory or hub name. PROCESSES: GPUs of this machine to train on (1 unless said). Judging takes one.
# Run again after an interruption, it goes on where it was.
set -euo pipefail
model=$1 config=$2 out=$3
context=$(sed -n 's/^train-context: //p' "$config")
trainer=(python -m lengthen)
[ "${PROCESSES:-1}" -gt 1 ] && trainer=(torchrun --nproc-per-node "$PROCESSES" -m lengthen)

judge() { # MODEL OUT: to 64 training contexts
  [ -e "$2/results/diagnosis.json" ] ||
    lengthen diagnose "$1" --data "$HELD_OUT" --join --train-context "$context" --dtype bfloat16 --out "$2" --resume
}

post_train() { # INTERVENTION OUT
  [ -e "$2/results/training.json" ] ||
    "${trainer[@]}" post-train "$model" --config "$config" --data "$TRAIN" --intervention "$1" --out "$2" --resume
}

lengthen check "$model"
judge "$model" "$out/before"
post_train "${INTERVENTION:-state-passing:device=cpu}" "$out/training"
post_train zero "$out/control-training"
judge "$out/training/model" "$out/after"
judge "$out/control-training/model" "$out/control"
lengthen compare "$out/before" "$out/after" --control "$out/control" --out "$out/certificate" --overwrite
