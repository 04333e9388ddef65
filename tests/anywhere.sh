#!/usr/bin/env bash
# Run the tests as other machines would, one factor changed at a time; a line for each in the end.
#
#     tests/anywhere.sh            all factors: an hour or two on two cores
#     tests/anywhere.sh avx2       some of them
#
# Emulated bf16 is many times slower, so that run leaves out the tests marked slow.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
declare -A environment=(
  [no-bf16]="KGMLM_BF16=0"
  [emulated-bf16]="KGMLM_BF16=1"
  [default]="ATEN_CPU_CAPABILITY=default"
  [avx2]="ATEN_CPU_CAPABILITY=avx2"
  [two-threads]="OMP_NUM_THREADS=2"
  [hash-seed]="PYTHONHASHSEED=271828"
)
factors=(no-bf16 emulated-bf16 default avx2 two-threads hash-seed)
[ $# -gt 0 ] && factors=("$@")
results=()
failed=0
for factor in "${factors[@]}"; do
  setting=${environment[$factor]:?"unknown factor $factor"}
  options=()
  [ "$factor" = emulated-bf16 ] && options=(-m "not slow and not long")
  log=$(mktemp)
  if env OMP_NUM_THREADS=1 "$setting" "$python" -m pytest -n 2 --dist loadfile -q -p no:cacheprovider "${options[@]}" | tee "$log"; then
    result=passed
  else
    result=FAILED
    failed=1
  fi
  results+=("$(printf '%-14s %-28s %s: %s' "$factor" "$setting" "$result" "$(tail -n 1 "$log")")")
  rm -f "$log"
done
printf '%s\n' "${results[@]}"
exit $failed
