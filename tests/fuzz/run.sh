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

# One input may take so long, by the clock; and so long by the processor's time, the program's start included, if it is
# to be forgiven when the machine was busy.
timeout_s=1
rss_mb=2048

fixed=(env)
# AddressSanitizer needs its shadow where newer kernels may put a program's map. Containers may forbid it.
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1

# program TARGET: the fuzzer.
program() { printf '%s/tests/fuzz/fuzz_%s\n' "$build" "$1"; }

# is_slow TARGET INPUT: true unless it ends, and takes no more than its time of the processor.
is_slow() {
  local used
  used=$( { TIMEFORMAT='%U %S'; time "${fixed[@]}" "$(program "$1")" -timeout=20 -rss_limit_mb=$rss_mb "$2" >/dev/null 2>&1 ||
    printf '99 0\n' >&2; } 2>&1)
  ! awk -v max=$timeout_s '{ if ($1 + $2 > max) exit 1 }' <<<"$used"
}

# fuzz_once TARGET SECONDS LOG
fuzz_once() {
  KVB_FUZZ_DECODED=$build/logs/$1.decoded "${fixed[@]}" "$(program "$1")" -max_total_time="$2" -timeout=$timeout_s \
    -rss_limit_mb=$rss_mb -max_len=4096 -print_final_stats=1 -artifact_prefix="$build/crashes/$1/" \
    "$build/corpus/$1" "$corpora/$1" >"$3" 2>&1
}

# run_target TARGET: libFuzzer ends with the first input that takes too long, and on a busy machine any may. Such a one is
# set aside, counted, and the rest of the time is used. Leaves one log per run, and what to report in TARGET.result.
run_target() {
  local name=$1 begin=$SECONDS slow=0 run=0 left=$seconds status=0 log input
  mkdir -p "$build/corpus/$name" "$build/crashes/$name"
  rm -f "$build/logs/$name".*
  while [ "$left" -gt 0 ]; do
    run=$((run + 1)) log=$build/logs/$name.$run.log status=0
    fuzz_once "$name" "$left" "$log" || status=$?
    [ $status -ne 0 ] || break
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    case $input in */timeout-*) ;; *) break ;; esac
    if is_slow "$name" "$input"; then break; fi
    mv "$input" "$build/logs/"
    slow=$((slow + 1)) status=0 left=$((seconds - (SECONDS - begin)))
  done
  printf '%d %d %d %d\n' $status $((SECONDS - begin)) $slow $run >"$build/logs/$name.result"
}

# stat TARGET NAME: the sum of a number of the fuzzer's over its runs.
stat() { cat "$build/logs/$1".*.log | awk -v name="stat::$2:" '$1 == name { n += $2 } END { print n + 0 }'; }

report_target() {
  local name=$1 status took slow run crashes=0 executions decoded log
  read -r status took slow run <"$build/logs/$name.result"
  [ "$status" -eq 0 ] || crashes=1
  executions=$(stat "$name" number_of_executed_units)
  decoded=$(od -An -t u8 "$build/logs/$name.decoded" | tr -d ' ')
  printf '%-12s %12d %11d %12d %8d %10d %5d %8d\n' "$name" "$executions" $((executions / (took + !took))) "$decoded" \
    "$took" "$(stat "$name" new_units_added)" "$slow" $crashes
  if [ $crashes -eq 0 ]; then
    passed=$((passed + 1))
    return
  fi
  failed=$((failed + 1))
  log=$build/logs/$name.$run.log
  grep -E 'ERROR: |runtime error: |SUMMARY: |Test unit written' "$log" >&2
  sed -n 's/.*Test unit written to //p' "$log" | tail -n 1 |
    while read -r input; do printf 'again: %s %s\n' "$(program "$name")" "$input" >&2; done
  printf 'the whole log: %s\n' "$log" >&2
}

# What reaches code that the tree's files do not. How often it is reached is no reason to keep a file.
keep_target() {
  local name=$1
  "${fixed[@]}" "$(program "$name")" -merge=1 -use_counters=0 -timeout=$timeout_s -rss_limit_mb=$rss_mb -max_len=512 \
    "$corpora/$name" "$build/corpus/$name" >"$build/logs/merge.$name" 2>&1 ||
    printf '%s: merging failed: %s\n' "$name" "$build/logs/merge.$name" >&2
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
printf '%-12s %12s %11s %12s %8s %10s %5s %8s\n' target executions per_second decoded seconds new_files slow crashes
for name in "$@"; do report_target "$name"; done
if [ "$keep" = 1 ]; then
  for name in "$@"; do keep_target "$name"; done
fi
printf '%d passed, %d failed, 0 skipped\n' $passed $failed
[ $failed -eq 0 ]
