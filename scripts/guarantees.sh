#!/usr/bin/env bash
# guarantees.sh [FILE]: write the table of guarantees and the tests that verify them, by default build/docs/guarantees.md. Part
# of make docs. With --check, write nothing. Part of make lint.
#
# docs/guarantees.md defines the guarantees. A test that verifies some of them says so in its comment:
#
#	// Verifies: G3, G7-G9
#
# Each guarantee needs a test, and each comment a guarantee.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

page=${1:-build/docs/guarantees.md}
[[ $page != --check ]] || page=/dev/null
mkdir -p "$(dirname "$page")"

# verified prints "G7 TestName package" for each guarantee and test.
verified() {
	git ls-files -co --exclude-standard '*_test.go' | xargs grep -HE '^(// Verifies: |func |var |type )' | awk '
		{ file = $0; sub(/:.*/, "", file); line = substr($0, length(file) + 2) }
		line ~ /^\/\/ Verifies: / { numbers = substr(line, 14); from = file; next }
		numbers == "" { next }
		from != file || line !~ /^func (Test|Fuzz)/ {
			print "- " from ": \"Verifies: " numbers "\" is not in the comment of a test"
			numbers = ""
			next
		}
		{
			name = line; sub(/^func /, "", name); sub(/\(.*/, "", name)
			directory = file; sub(/\/[^\/]*$/, "", directory)
			for (n = split(numbers, part, /, */); n > 0; n--) {
				if (part[n] !~ /^G[0-9]+(-G[0-9]+)?$/) print "- " file ": " name ": \"" part[n] "\" is not a guarantee, such as G7, or a range, such as G7-G9"
				last = split(part[n], range, "-")
				for (i = substr(range[1], 2) + 0; i <= substr(range[last], 2) + 0; i++) print "G" i, name, directory
			}
			numbers = ""
		}'
}

tests=$(verified | sort -V)
if grep -q '^-' <<<"$tests"; then
	say "$(grep '^-' <<<"$tests")"
	exit 1
fi

status=0
defined=$(sed -nE 's/^\| (G[0-9]+) \|.*/\1/p' docs/guarantees.md)
for number in $defined; do
	grep -q "^$number " <<<"$tests" || { say "docs/guarantees.md: no test has a comment \"Verifies: $number\""; status=1; }
done
while read -r number name directory; do
	grep -qx "$number" <<<"$defined" || { say "$directory: $name verifies $number, which docs/guarantees.md does not define"; status=1; }
done <<<"$tests"

{
	echo '# Guarantees and their tests'
	echo
	echo 'This page is generated from `docs/guarantees.md` and from the comments of the tests.'
	sed -nE 's/^\| (G[0-9]+) \| (.*) \|$/\1 \2/p' docs/guarantees.md | while read -r number promise; do
		printf '\n## %s\n\n%s\n\n' "$number" "$(sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g' <<<"$promise")"
		sed -nE "s,^$number (.*) (.*),- \`\1\` in \`\2\`,p" <<<"$tests"
	done
} >"$page"
[[ $page == /dev/null ]] || say "wrote $page"
exit "$status"
