#!/usr/bin/env bash
# Checks that links in the pages, and the files and tests that they name, exist. Part of make lint.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

status=0
fault() {
	say "$*"
	status=1
}

tests=$(grep -rhoE --include='*_test.go' --exclude-dir=build '^func (Test|Benchmark|Fuzz)[A-Za-z0-9_]+' . | awk '{print $2}')
for page in README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs/*.md docs/*/*.md; do
	[[ -e $page ]] || continue
	while IFS= read -r link; do
		file=${link%%#*}
		case $link in
		http:* | https:* | '') continue ;;
		'#'*) file=$(basename "$page") ;;
		esac
		target=$(dirname "$page")/$file
		[[ -e $target ]] || { fault "$page: the link to $link is broken"; continue; }
		if [[ $link == *'#'* ]]; then
			# Anchors are headings in lower case, without punctuation, and with dashes instead of spaces.
			sed -n 's/^##* //p' "$target" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g' | grep -x -- "${link#*#}" >/dev/null ||
				fault "$page: $file has no heading for #${link#*#}"
		fi
	done < <(grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//')
	while IFS= read -r name; do
		grep -qx -- "$name" <<<"$tests" || fault "$page: there is no $name"
	done < <(grep -oE '\b(Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9]*(_[A-Za-z0-9]+)*\b' "$page" | sort -u)
	while IFS= read -r file; do
		[[ -e $file ]] || fault "$page: there is no $file"
	done < <(grep -oE '`(pkg|cmd|executor|shard|election|scripts|docs|examples)/[A-Za-z0-9_/.-]+\.(go|sh|md|txt|txtar|yaml)`' "$page" | tr -d '`' | sort -u)
	while IFS= read -r name; do
		grep -q "^${name%\*}" <<<"$tests" || fault "$page: there is no $name"
	done < <(grep -oE '\b(Test|Benchmark|Fuzz)[A-Za-z0-9_]+_\*' "$page" | sort -u)
done

# Check that the files and functions that the flows name exist.
flows=$(sed -n '/^## Three flows/,/^## [^T]/p' docs/internals/code.md | tr '\n' ' ')
files=$(grep -oE '`[a-z0-9_/]+/[a-z0-9_]+\.go`' <<<"$flows" | tr -d '`' | sort -u)
declared=
for file in $files; do
	[[ -e $file ]] || { fault "docs/internals/code.md: there is no $file"; continue; }
	declared+=$(sed -nE 's/^func (\([^)]*\) )?([A-Za-z0-9_]+)[[(].*/\2/p' "$file")$'\n'
done
while IFS= read -r name; do
	grep -qx -- "$name" <<<"$declared" || fault "docs/internals/code.md: no file of the flows declares $name"
done < <(grep -oE '`[A-Za-z][A-Za-z0-9]*`' <<<"$flows" | tr -d '`' | sort -u)
exit "$status"
