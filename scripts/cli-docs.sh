#!/usr/bin/env bash
# cli-docs.sh [FILE]: write the page of the command line, by default build/docs/cli.md, from the help of the commands.
# Part of make docs and of packages.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

carillon=${CARILLON:-$root/build/carillon}
page=${1:-build/docs/cli.md}
mkdir -p "$(dirname "$page")"
[[ -x $carillon ]] || die "build/carillon is missing: run \`make docs\`"
unset "${!CARILLON_@}" 2>/dev/null || true

# shorten: print a help without what the page contains once: the global flags and the names of
# runs. It describes defaults that depend on the host in words.
shorten() {
	awk '
		/^Global flags:/ { skip = 1 }
		/^A run is named by/ { skip = 1; print "How a run is named: see \"Run names\" below."; print ""; next }
		/^$/ { if (skip) { skip = 0; next } }
		/COMMAND --help" shows the help/ { next }
		!skip { print }
	' | sed -e 's/unique in the cluster (default "[^"]*")/unique in the cluster (default: that of the host)/' \
		-e 's/that may run at the same time (default [0-9]*)/that may run at the same time (default: 8 for each CPU, at least 16)/' \
		-e '/^ *-h, --help /d' -e '/^Flags:$/{N;/^Flags:\n$/d;}'
}

# below: print the subcommands that a help lists, in its groups.
below() {
	awk '
		/^Usage:$/ { usage = 1 } # skip descriptions and examples, which may contain lists
		/^(Usage|Examples|Flags|Global flags|Topics.*):$/ || /^Topics/ { on = 0; next }
		usage && /^[A-Z].*:$/ { on = 1; next }
		on && /^  [a-z]/ { print $1 }
	' | grep -vxE 'completion|help' || true
}

# sections LEVEL COMMAND...: print a command and all its subcommands.
sections() {
	local level=$1 help sub
	shift
	help=$("$carillon" "$@" --help)
	printf '\n%s carillon %s\n\n```\n%s\n```\n' "$level" "$*" "$(shorten <<<"$help")"
	for sub in $(below <<<"$help"); do sections "$level#" "$@" "$sub"; done
}

topic() { # NAME TITLE
	printf '\n## %s\n\n```\n%s\n```\n' "$2" "$("$carillon" help "$1" | sed '/^Usage:/,$d' | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}')"
}

{
	cat <<'END'
# The command line

This page contains the help of every `carillon` command. It is generated; `carillon COMMAND --help` prints the same text.
Most commands are a noun followed by a verb. Some common commands are a single word.

Commands write data to stdout and everything else to stderr. With `-o json`, an error is a JSON object on stderr: `{"code",
"field", "message", "hint"}`. An empty list is `[]`. In scripts, use `-o json`: new fields may be added, but fields are never
renamed. Tables may change.

The server is the first of these that is set: `--server`, `CARILLON_SERVER`, the server of the [context](#contexts). Otherwise
it is the node on this host: its unix socket `/run/carillon/api.sock` if you may open it, else `http://127.0.0.1:7070`. The
token, the namespace and the TLS files follow the same order.
END
	help=$("$carillon" --help)
	printf '\n## carillon\n\n```\n%s\n```\n' "$(sed '/^Flags:/,/^$/d; /COMMAND --help" shows the help/d' <<<"$help" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}')"
	printf '\n## Global flags\n\n```\n%s\n```\n' "$("$carillon" task list --help | sed -n '/^Global flags:/,/^$/p' | sed '1d;/^$/d')"
	for command in $(below <<<"$help"); do
		sections '##' "$command"
	done
	topic contexts "Contexts"
	topic output "Output"
	topic fields "Fields of a task"
	topic policies "Policies"
	topic run-names "Run names"
	topic selectors "Selectors"
	topic queries "Queries"
	topic exit-codes "Exit codes"
} >"$page"
say "wrote ${page#"$root/"}: $(grep -c '^##' "$page") sections"
