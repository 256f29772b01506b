#!/usr/bin/env bash
# run.sh BUILD_DIR [short]: checks the Promela models here, and shows that each needs what its comment lists as removals.
#
# "Removal: NAME COMPLAINT" in a model's opening comment: with NAME defined the checker must find a trace, and
# complain of an assertion about COMPLAINT, or of an end that is none (COMPLAINT is "end").
# "Short: NAME[=VALUE]...": with `short`, the model is explored with these values and not with its own, which takes minutes.
set -uo pipefail
build=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
# Beyond these nothing is shown: the checker says so, and the check fails. MiB of memory; steps.
memory=12000 depth=1000000
passed=0 failed=0

fail() { printf '%s: %s\n' "$1" "$2"; failed=$((failed + 1)); }

# check MODEL LABEL [NAME|NAME=VALUE...]: builds and runs the checker; what it says is in $build/MODEL.LABEL/log.
check() {
  local model=$1 dir=$build/$1.$2
  shift 2
  rm -rf "$dir" && mkdir -p "$dir" && cp "$model.pml" "$dir" && cd "$dir" || return 1
  spin -a "${@/#/-D}" "$model.pml" >log 2>&1 &&
    gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=$memory -o pan pan.c >>log 2>&1 &&
    ./pan -m$depth >log 2>&1
  cd - >/dev/null || return 1
}

# whole MODEL [NAME|NAME=VALUE...]
whole() {
  local log=$build/$1.whole/log model=$1
  shift
  check "$model" whole "$@"
  if grep -q 'errors: 0' "$log" && ! grep -qE 'max search depth too small|out of memory|not completed' "$log"; then
    printf '%-28s no error in %s states\n' "$model${*:+ $*}" "$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$log")"
    passed=$((passed + 1))
  else
    cat "$log"
    fail "$model${*:+ $*}" "the model has an error, or was not explored in full"
  fi
}

removal() {
  local log=$build/$1.$2/log complaint="assertion violated .*$3"
  [ "$3" = end ] && complaint="invalid end state"
  check "$1" "$2" "$2"
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
  mapfile -t settings < <(sed -n 's/^ \* Short: //p' "$model.pml")
  if [ "${2-}" != short ] || [ ${#settings[@]} -eq 0 ]; then settings=(""); fi
  for setting in "${settings[@]}"; do
    read -ra values <<<"$setting"
    whole "$model" "${values[@]}"
  done
  while read -r name about; do removal "$model" "$name" "$about"; done \
    < <(sed -n 's/^ \* Removal: //p' "$model.pml")
done
printf '%d passed, %d failed, 0 skipped\n' $passed $failed
[ $failed -eq 0 ]
