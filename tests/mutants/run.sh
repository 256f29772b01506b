#!/usr/bin/env bash
# run.sh BUILD_DIR [NAME...]: takes one safety mechanism after the other away, and shows that a test notices.
#
# Each NAME.patch here begins with "Test:", the test that must fail, and "Removes:", what it takes away. A copy of the tree
# is patched, that test is built and run, and the patch is taken back. A mutant that its test does not notice, and a
# patch that does not apply any more, is a failure.
set -uo pipefail
build=$(realpath -m "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
mutants=$PWD/tests/mutants
killed=0 failed=0

field() { sed -n "s/^$1: *//p" "$mutants/$2.patch"; }
fail() { printf '%s: %s\n' "$1" "$2"; failed=$((failed + 1)); }

# The copy keeps its timestamps, so that a second run builds only what differs.
rm -rf "$build/tree"
mkdir -p "$build/tree"
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -xf - -C "$build/tree"
cd "$build/tree" || exit 1
# But what the run before made of a patched file must not pass for what the file is now.
sed -n 's|^+++ b/||p' "$mutants"/*.patch | sort -u | xargs touch
cmake -G Ninja -S . -B "$build/out" -DCMAKE_BUILD_TYPE=Debug -DKVBELL_BUILD_BENCH=OFF >"$build/cmake.log" ||
  { cat "$build/cmake.log"; exit 1; }

mutate() {
  local name=$1 test log=$build/$1.log status
  test=$(field Test "$name")
  patch -p1 --no-backup-if-mismatch -s --dry-run <"$mutants/$name.patch" >"$log" 2>&1 ||
    { cat "$log"; fail "$name" "the patch does not apply"; return; }
  patch -p1 --no-backup-if-mismatch -s <"$mutants/$name.patch"
  if cmake --build "$build/out" --target "test_$test" >"$log" 2>&1; then
    timeout 120 "$build/out/tests/test_$test" >"$log" 2>&1
    status=$?
    if [ $status -eq 0 ]; then
      fail "$name" "test_$test does not notice"
    else
      printf '%-28s %s (status %d)\n' "$name" "test_$test fails" $status
      killed=$((killed + 1))
    fi
  else
    cat "$log"
    fail "$name" "does not build"
  fi
  patch -p1 --no-backup-if-mismatch -s -R <"$mutants/$name.patch"
}

if [ $# -eq 0 ]; then
  for patch in "$mutants"/*.patch; do set -- "$@" "$(basename "$patch" .patch)"; done
fi
for name in "$@"; do mutate "$name"; done
printf '%d passed, %d failed, 0 skipped\n' $killed $failed
[ $failed -eq 0 ]
