#!/usr/bin/env bash
# package.sh FORMAT...: build packages of these formats (deb, rpm, apk), and print their paths. The build is reproducible. make deb
# builds deb, make release all of them.
#
#   GOARCH       the architecture (default: this host's)
#   CGO_ENABLED  1, only for deb: the program depends on libc6, and finds users and groups of tasks
#                through the host's NSS (LDAP, SSSD). By default, it is static, and uses only
#                /etc/passwd and /etc/group
#   VERSION      the version of a release, such as v1.2.3 (default, only for deb: derived from git)
#   COMPRESSION  how to compress deb and rpm: gzip, xz or zstd, or none for deb (default: xz)
#   OUT          the directory for the packages (default: build)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

missing=()
for tool in go git gzip; do command -v "$tool" >/dev/null || missing+=("$tool"); done
((${#missing[@]} == 0)) || die "missing programs: $(IFS=,; echo "${missing[*]}")"
(($# > 0)) || die "name a format: deb, rpm or apk"
out=${OUT:-$root/build}
mkdir -p build "$out"

goarch=$(go env GOARCH)
export CGO_ENABLED=${CGO_ENABLED:-0}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# git_version prints the version of a commit in the form of Debian. The fourth commit after v1.2.3 is 1.2.3+4.gabc. Before the first
# tag, versions are ordered by the time of the commit.
git_version() {
	local said tag rest
	if said=$(git describe --tags --long --match 'v[0-9]*' 2>/dev/null); then
		rest=${said##*-} tag=${said%-*}
		rest=${tag##*-}.$rest tag=${tag%-*}
		tag=${tag#v}
		printf '%s' "${tag/-/\~}"
		[[ $rest == 0.* ]] || printf '+%s' "$rest"
	else
		printf '0~git%s.%s' "$(date -u -d "@$(git log -1 --format=%ct)" +%Y%m%d%H%M%S)" "$(git rev-parse --short=7 HEAD)"
	fi
	[[ -z $(git status --porcelain --untracked-files=no) ]] || printf '+dirty'
}
if [[ ${VERSION:-} =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)[0-9]+)?$ ]]; then
	schema=semver version=$VERSION # each format has its own form of v1.2.3-rc1
else
	[[ $* == deb ]] || die "set VERSION to the version of a release, such as v1.2.3"
	schema=none version=$(git_version)
fi

work=$(mktemp -d "$root/build/package.XXXXXX")
trap 'rm -rf "$work"' EXIT
umask 022

# The tree all is in every package, deb only in those of Debian, and other in the others.
all=$work/all deb=$work/deb other=$work/other
doc=$all/usr/share/doc/carillon
mkdir -p "$all"/{usr/bin,etc/carillon,usr/lib/systemd/system} "$doc"/examples/{receivers,prometheus,grafana} "$doc/docs/how-to" \
	"$all"/usr/share/{bash-completion/completions,fish/vendor_completions.d} \
	"$deb"/usr/share/{doc/carillon,lintian/overrides,zsh/vendor-completions} "$other"/usr/share/{licenses/carillon,zsh/site-functions}

go build -ldflags "-s -w -X github.com/carillonhq/carillon/pkg/internal/version.version=${VERSION:-$(git describe --tags --always --dirty)}" \
	-o "$all/usr/bin/carillon" ./cmd/carillon

# A program for another architecture cannot print its manual here, so build one for this host.
program=$all/usr/bin/carillon
if [[ $goarch != $(go env GOHOSTARCH) ]]; then
	program=$work/carillon
	env -u GOARCH -u GOARM -u CGO_ENABLED go build -o "$program" ./cmd/carillon
fi

# If the program uses the C library, its symbols show which version it requires.
libc=''
if LC_ALL=C grep -aq 'libc\.so\.6' "$all/usr/bin/carillon"; then
	needs=$(LC_ALL=C grep -ao 'GLIBC_2\.[0-9]*' "$all/usr/bin/carillon" | sort -uV | tail -1)
	libc="libc6 (>= ${needs#GLIBC_})"
fi

install -m 640 scripts/deb/agent.yaml "$all/etc/carillon/agent.yaml"
install -m 644 scripts/deb/carillon.service scripts/deb/carillon.socket "$all/usr/lib/systemd/system/"
install -m 644 scripts/deb/scheduler-only.conf examples/*.yaml "$doc/examples/"
install -m 644 examples/receivers/*.yaml "$doc/examples/receivers/"
install -m 644 deploy/prometheus/rules.yaml "$doc/examples/prometheus/carillon.yaml"
install -m 644 deploy/grafana/carillon.json "$doc/examples/grafana/"
install -m 644 README.md "$doc/"
install -m 644 docs/*.md "$doc/docs/"
install -m 644 docs/how-to/*.md "$doc/docs/how-to/"
install -m 644 CHANGELOG.md "$doc/changelog"
CARILLON=$program bash scripts/cli-docs.sh "$doc/docs/cli.md" >/dev/null
bash scripts/api-docs.sh "$doc/docs/api.md" >/dev/null
env -u GOARCH -u GOARM CGO_ENABLED=0 go run ./scripts/records -page "$doc/docs/records.md"
chmod 644 "$doc"/docs/{cli,api,records}.md
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}' ./cmd/carillon | sort -u >"$doc/modules.txt"
"$program" man --dir "$all/usr/share/man"
"$program" completion bash >"$all/usr/share/bash-completion/completions/carillon"
"$program" completion fish >"$all/usr/share/fish/vendor_completions.d/carillon.fish"

maintainer='The Carillon authors <carillonhq@users.noreply.github.com>'
install -m 644 scripts/deb/copyright "$deb/usr/share/doc/carillon/copyright"
install -m 644 scripts/deb/lintian-overrides "$deb/usr/share/lintian/overrides/carillon"
cat >"$deb/usr/share/doc/carillon/changelog.Debian" <<END
carillon (${version#v}-1) unstable; urgency=medium

  * Built from $(git describe --tags --always); what is new is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
"$program" completion zsh | tee "$deb/usr/share/zsh/vendor-completions/_carillon" >"$other/usr/share/zsh/site-functions/_carillon"
install -m 644 LICENSE "$other/usr/share/licenses/carillon/"
find "$doc" "$deb/usr/share/doc" "$all/usr/share/man" -type f ! -name copyright ! -path "$doc/examples/*" ! -name modules.txt -exec gzip -9n {} +
install -m 755 scripts/release/postinstall.sh "$work/" # an Alpine package contains its time
find "$all" "$deb" "$other" "$work/postinstall.sh" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +

cat >"$work/nfpm.yaml" <<END
name: carillon
arch: $goarch
version: "$version"
version_schema: $schema
release: 1
section: admin
priority: optional
maintainer: $maintainer
homepage: https://github.com/carillonhq/carillon
license: Apache-2.0
description: |
  cron for a fleet: schedules tasks and runs them on many hosts
  One daemon runs on every host. The daemons coordinate through etcd, share the
  scheduling, and run the tasks. When a host fails, the others take over its
  tasks. Every tick of a task has exactly one recorded outcome, with a reason:
  it ran, was skipped, or was missed.

  A single host needs nothing else: the daemon contains an etcd, which is
  enabled by default.
contents:
- {src: $all/usr, dst: /usr, type: tree}
- {src: $all/etc/carillon/agent.yaml, dst: /etc/carillon/agent.yaml, type: config|noreplace}
- {src: $deb, dst: /, type: tree, packager: deb}
- {src: $other, dst: /, type: tree, packager: rpm}
- {src: $other, dst: /, type: tree, packager: apk}
- {src: scripts/release/carillon.openrc, dst: /etc/init.d/carillon, file_info: {mode: 0755}, packager: apk}
deb:
  compression: ${COMPRESSION:-xz}
rpm:
  compression: ${COMPRESSION:-xz}
  buildhost: localhost
overrides:
  deb:
    depends: ["$libc", init-system-helpers (>= 1.54), passwd]
    suggests: [etcd-server]
    scripts: {postinstall: scripts/deb/postinst, preremove: scripts/deb/prerm, postremove: scripts/deb/postrm}
  rpm:
    depends: [/usr/sbin/groupadd]
    scripts: {postinstall: scripts/release/postinstall.sh, preremove: scripts/release/preremove.sh}
  apk:
    scripts: {postinstall: $work/postinstall.sh}
END
for format in "$@"; do
	path=$(env -u GOARCH -u GOARM CGO_ENABLED=0 go tool -modfile=scripts/release/go.mod nfpm package -f "$work/nfpm.yaml" -p "$format" -t "$out/" | sed -n 's/^created package: //p')
	[[ $format != deb ]] || ! command -v dpkg-deb >/dev/null || bash scripts/deb/check.sh "$path"
	say "$path"
done
