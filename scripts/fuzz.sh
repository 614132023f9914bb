#!/usr/bin/env bash
# make fuzz: each fuzz target there is, for FUZZTIME. What is found is kept by Go
# under the package's testdata/fuzz, and fails `make test` until it is mended.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

time=${FUZZTIME:-20s}
count=0 bad=()
while IFS=: read -r file target; do
	package=./$(dirname "$file")
	say "$target in $package, for $time"
	count=$((count + 1))
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" || bad+=("$package $target")
done < <(grep -rEo --include='*_test.go' --exclude-dir=build '^func Fuzz[A-Za-z0-9_]+' . | sed 's|^\./||; s|func ||' | sort)
((count > 0)) || die "there are no fuzz targets"
if ((${#bad[@]} > 0)); then
	printf 'make fuzz: FAILED: %s\n' "${bad[@]}"
	exit 1
fi
say "make fuzz: ok, $count targets"
