#!/usr/bin/env bash
# run.sh BUILD_DIR: checks the Promela models here, in full, and shows that each needs what its comment lists as removals.
#
# "Removal: NAME COMPLAINT" in a model's opening comment: with NAME defined the checker must find a trace, and
# complain of an assertion about COMPLAINT, or of an end that is none (COMPLAINT is "end").
set -uo pipefail
build=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
# Beyond these nothing is shown: the checker says so, and the check fails. MiB of memory; steps.
memory=12000 depth=1000000
passed=0 failed=0

fail() { printf '%s: %s\n' "$1" "$2"; failed=$((failed + 1)); }

# check MODEL [NAME]: builds and runs the checker; what it says is in $build/MODEL.NAME/log.
check() {
  local dir=$build/$1.${2:-whole}
  rm -rf "$dir" && mkdir -p "$dir" && cp "$1.pml" "$dir" && cd "$dir" || return 1
  spin -a ${2:+-D$2} "$1.pml" >log 2>&1 &&
    gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=$memory -o pan pan.c >>log 2>&1 &&
    ./pan -m$depth >log 2>&1
  cd - >/dev/null || return 1
}

whole() {
  local log=$build/$1.whole/log
  check "$1"
  if grep -q 'errors: 0' "$log" && ! grep -qE 'max search depth too small|out of memory|not completed' "$log"; then
    printf '%-28s no error in %s states\n' "$1" "$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$log")"
    passed=$((passed + 1))
  else
    cat "$log"
    fail "$1" "the model has an error, or was not explored in full"
  fi
}

removal() {
  local log=$build/$1.$2/log complaint="assertion violated .*$3"
  [ "$3" = end ] && complaint="invalid end state"
  check "$1" "$2"
  if grep -q "^pan:1: $complaint" "$log"; then
    printf '%-28s %s\n' "$1 $2" "$(sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' "$log" | cut -c -60)"
    passed=$((passed + 1))
  else
    cat "$log"
    fail "$1 $2" "the checker has no complaint about \"$3\""
  fi
}

for model in *.pml; do
  model=${model%.pml}
  whole "$model"
  while read -r name about; do removal "$model" "$name" "$about"; done \
    < <(sed -n 's/^ \* Removal: //p' "$model.pml")
done
printf '%d passed, %d failed, 0 skipped\n' $passed $failed
[ $failed -eq 0 ]
