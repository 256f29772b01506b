#!/usr/bin/env bash
# lint.sh BUILD_DIR: rules that a compiler does not check. Run by ./dev lint from the top of the tree.
set -uo pipefail
build=$1
status=0

fail() { printf 'lint: %s\n' "$*" >&2; status=1; }

# none MESSAGE GREP_ARGUMENT...: the pattern must not occur.
none() {
  local message=$1
  shift
  if git grep --untracked -nE "$@" >&2; then fail "$message"; fi
}

mapfile -t c_files < <(git ls-files --cached --others --exclude-standard '*.c' '*.h')
clang-format --dry-run -Werror "${c_files[@]}" || fail "formatting; run ./dev format"

none "memory orders belong in shm/atomic.h" \
  -e '__atomic_|memory_order|\batomic_(load|store|fetch|exchange|compare)|__sync_' -- '*.c' '*.h' ':!shm/atomic.h'
none "shm/ must not know of the sides" -e '#include "(server|client|bench|tests)/' -- 'shm/*'
none "client/ must not know of the server" -e '#include "(server|bench|tests)/' -- 'client/*'
none "server/ must not know of the client" -e '#include "(client|bench|tests)/' -- 'server/*'
none "bench/ must not know of the server" -e '#include "(server|tests)/' -- 'bench/*.c' 'bench/*.h' ':!bench/server.c'
none "only fd.c closes, and never in a loop on EINTR" -e 'close\([^)]*\).*EINTR' -- '*.c'

for file in $(git ls-files --cached --others --exclude-standard '*.c'); do
  sed -n '2,4p' "$file" | grep -q '^ \* [a-z_]*\.c - \|^/\*$' || fail "$file does not open with what it is"
  head -n 1 "$file" | grep -q SPDX-License-Identifier || fail "$file has no SPDX line"
done
for file in tests/*/test_*.c; do
  grep -q '#include <cmocka.h>' "$file" || fail "$file does not use cmocka"
done

for header in include/kvbell/*.h; do
  gcc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c -Iinclude "$header" ||
    fail "$header is not C99"
  g++ -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ -Iinclude "$header" ||
    fail "$header is not C++11"
done

for library in libzmq libnuma; do
  readelf -d "$build/server/kvbelld" | grep -q "NEEDED.*$library" || fail "kvbelld does not need $library"
done

# Streaming stores are not held back by a release store: what the compiler made has a fence between them and each return.
if [ "$(uname -m)" = x86_64 ]; then
  objdump -d --no-show-raw-insn "$build/shm/CMakeFiles/kvb_shm.dir/copy.c.o" |
    awk '$2 ~ /^vmovnt/ { open = 1; seen = 1 } $2 == "sfence" { open = 0 } $2 ~ /^(ret|jmp$)/ && open { bad = 1 } END { exit bad || !seen }' ||
    fail "shm/copy.c streams and returns without an sfence"
fi

shellcheck dev .ci/run tests/fuzz/run.sh tests/lint.sh tests/model/run.sh tests/mutants/run.sh || fail "shellcheck"

git ls-files --cached --others --exclude-standard 'shm/*.c' 'server/*.c' 'client/*.c' 'bench/*.c' |
  xargs -n 8 -P "$(nproc)" clang-tidy --quiet -p "$build" 2>/dev/null || fail "clang-tidy"

[ $status -eq 0 ] && echo "lint: clean"
exit $status
