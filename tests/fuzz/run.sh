#!/usr/bin/env bash
# run.sh BUILD_DIR SECONDS KEEP [TARGET...]: runs fuzz targets for so many seconds each, as many at a time as there are
# cores, and ends with a table.
#
# What they find is gathered in BUILD_DIR/corpus/TARGET, crashing inputs in BUILD_DIR/crashes/TARGET. KEEP=1 adds
# those of the new files that still reach something new to the tree, as small as they get.
set -uo pipefail
build=$(realpath "$1") seconds=$2 keep=$3
shift 3
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
corpora=$PWD/corpus

# One input may take so long; one that took longer once and does not when it is run alone was not at fault.
timeout_s=1
rss_mb=2048

fixed=(env)
# AddressSanitizer needs its shadow where newer kernels may put a program's map. Containers may forbid it.
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1

# program TARGET: the fuzzer.
program() { printf '%s/tests/fuzz/fuzz_%s\n' "$build" "$1"; }

run_target() {
  local name=$1 log=$build/logs/$1.log
  mkdir -p "$build/corpus/$name" "$build/crashes/$name"
  "${fixed[@]}" "$(program "$name")" -max_total_time="$seconds" -timeout=$timeout_s -rss_limit_mb=$rss_mb -max_len=4096 \
    -print_final_stats=1 -artifact_prefix="$build/crashes/$name/" "$build/corpus/$name" "$corpora/$name" \
    >"$log" 2>&1
  echo $? >"$build/logs/$name.status"
}

# stat TARGET NAME: a number of the fuzzer's; 0 when it did not get to say it.
stat() { awk -v name="stat::$2:" '$1 == name { n = $2 } END { print n + 0 }' "$build/logs/$1.log"; }

# slow_only TARGET: true if the fuzzer ended for a slow input that is not slow when nobody else is about.
slow_only() {
  local name=$1 input
  input=$(sed -n 's/.*Test unit written to //p' "$build/logs/$name.log" | tail -n 1)
  case $input in */timeout-*) ;; *) return 1 ;; esac
  for _ in 1 2 3; do
    "${fixed[@]}" "$(program "$name")" -timeout=$timeout_s -rss_limit_mb=$rss_mb "$input" >/dev/null 2>&1 || return 1
  done
  mv "$input" "$build/logs/"
}

report_target() {
  local name=$1 status crashes=0 seconds_run
  status=$(cat "$build/logs/$name.status")
  if [ "$status" -ne 0 ]; then
    crashes=1
    if slow_only "$name"; then
      crashes=0
      printf '%s: an input took over %d s once, and not when run alone; it ran on no further\n' "$name" $timeout_s >&2
    fi
  fi
  seconds_run=$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$build/logs/$name.log")
  printf '%-12s %12d %12d %12d %12s %10d %8d\n' "$name" "$(stat "$name" number_of_executed_units)" \
    "$(stat "$name" average_exec_per_sec)" "$(stat "$name" decoded)" "${seconds_run:--}" \
    "$(stat "$name" new_units_added)" $crashes
  if [ $crashes -eq 0 ]; then
    passed=$((passed + 1))
    return
  fi
  failed=$((failed + 1))
  grep -E 'ERROR: |runtime error: |SUMMARY: |Test unit written' "$build/logs/$name.log" >&2
  sed -n 's/.*Test unit written to //p' "$build/logs/$name.log" | tail -n 1 |
    while read -r input; do printf 'again: %s %s\n' "$(program "$name")" "$input" >&2; done
  printf 'the whole log: %s\n' "$build/logs/$name.log" >&2
}

# What reaches code that the tree's files do not. How often it is reached is no reason to keep a file.
keep_target() {
  local name=$1
  "${fixed[@]}" "$(program "$name")" -merge=1 -use_counters=0 -timeout=$timeout_s -rss_limit_mb=$rss_mb -max_len=512 \
    "$corpora/$name" "$build/corpus/$name" >"$build/logs/$name.merge.log" 2>&1 ||
    printf '%s: merging failed: %s\n' "$name" "$build/logs/$name.merge.log" >&2
}

if [ $# -eq 0 ]; then
  for folder in "$corpora"/*/; do set -- "$@" "$(basename "$folder")"; done
fi
for name in "$@"; do
  [ -x "$(program "$name")" ] || { printf 'there is no target "%s"\n' "$name" >&2; exit 1; }
done
mkdir -p "$build/logs"
for name in "$@"; do
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
  run_target "$name" &
done
wait

passed=0 failed=0
printf '%-12s %12s %12s %12s %12s %10s %8s\n' target executions per_second decoded seconds new_files crashes
for name in "$@"; do report_target "$name"; done
if [ "$keep" = 1 ]; then
  for name in "$@"; do keep_target "$name"; done
fi
printf '%d passed, %d failed, 0 skipped\n' $passed $failed
[ $failed -eq 0 ]
