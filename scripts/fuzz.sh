#!/usr/bin/env bash
# make fuzz: run each fuzz target for FUZZTIME. Go stores failing inputs in testdata/fuzz of the
# package. They fail `make test` until the bug is fixed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

time=${FUZZTIME:-20s}
mkdir -p build
log=$root/build/fuzz.log
binary=$root/build/fuzz.test
module=$(go list -m)

# The corpora that fuzzing has found are where go test -fuzz keeps them.
cache=$(go env GOCACHE)/fuzz

# build_package PACKAGE: build the tests of a package once for all of its targets. Only this module's
# code guides the search for inputs, so only this code is instrumented. With -fuzz, go test would also
# compile Go's library and all modules for it, and the targets would execute fewer inputs a second.
build_package() {
	go test -c -vet=off "-gcflags=$module/...=-dwarf=false -d=libfuzzer" -o "$binary" "$1" >"$log" 2>&1 && return 0
	cat "$log"
	return 1
}

# fuzz TARGET PACKAGE: run one target. If the time ends during an input, the program may report its
# own deadline as a failure. A real failure leaves an input file. So print the output only when it
# is clear which one it was.
fuzz() {
	(cd "$2" && "$binary" -test.run '^$' -test.fuzz "^$1\$" -test.fuzztime "$time" -test.fuzzcachedir "$cache/$(go list .)") >"$log" 2>&1 &&
		{ grep '^fuzz: elapsed' "$log" | tail -n 1 || true; } && return 0
	if grep -q '^[[:space:]]*context deadline exceeded$' "$log" && ! grep -qE 'Failing input written to|panic:|DATA RACE|_test\.go:[0-9]+:' "$log"; then
		say "no input failed before the time was up"
		return 0
	fi
	cat "$log"
	return 1
}

count=0 bad=() built=""
while IFS=: read -r file target; do
	package=./$(dirname "$file")
	say "$target in $package, for $time"
	count=$((count + 1))
	if [[ $built != "$package" ]]; then
		built=$package
		build_package "$package" || rm -f "$binary"
	fi
	[[ -x $binary ]] && fuzz "$target" "$package" || bad+=("$package $target")
done < <(grep -rEo --include='*_test.go' --exclude-dir=build '^func Fuzz[A-Za-z0-9_]+' . | sed 's|^\./||; s|func ||' | sort)
rm -f "$binary"

((count > 0)) || die "no fuzz targets found"
if ((${#bad[@]} > 0)); then
	printf 'make fuzz: FAILED: %s\n' "${bad[@]}"
	exit 1
fi
say "make fuzz: ok, $count targets"
