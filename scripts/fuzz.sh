#!/usr/bin/env bash
# make fuzz: each fuzz target there is, for FUZZTIME. What is found is kept by Go
# under the package's testdata/fuzz, and fails `make test` until it is mended.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

time=${FUZZTIME:-20s}
mkdir -p build
log=$root/build/fuzz.log

# fuzz TARGET PACKAGE. When time is up while an input is being tried, go test may
# call its own deadline a failure; a real one leaves the input that failed. So what
# go test says is told when it is known which it was.
fuzz() {
	go test -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$2" >"$log" 2>&1 && tail -n 1 "$log" && return 0
	if grep -q '^[[:space:]]*context deadline exceeded$' "$log" && ! grep -qE 'Failing input written to|panic:|DATA RACE|_test\.go:[0-9]+:' "$log"; then
		say "no input failed; the time was up"
		return 0
	fi
	cat "$log"
	return 1
}

count=0 bad=()
while IFS=: read -r file target; do
	package=./$(dirname "$file")
	say "$target in $package, for $time"
	count=$((count + 1))
	fuzz "$target" "$package" || bad+=("$package $target")
done < <(grep -rEo --include='*_test.go' --exclude-dir=build '^func Fuzz[A-Za-z0-9_]+' . | sed 's|^\./||; s|func ||' | sort)
((count > 0)) || die "no fuzz targets found"
if ((${#bad[@]} > 0)); then
	printf 'make fuzz: FAILED: %s\n' "${bad[@]}"
	exit 1
fi
say "make fuzz: ok, $count targets"
