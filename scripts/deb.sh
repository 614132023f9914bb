#!/usr/bin/env bash
# make deb: build a Debian package in build/. The build is reproducible.
#
#   GOARCH       the architecture (default: this host's)
#   CGO_ENABLED  1: the program depends on libc6, and finds users and groups of tasks through the
#                host's NSS (LDAP, SSSD). By default, it is static, and uses only /etc/passwd and
#                /etc/group
#   DEB_VERSION  the version of the package (default: derived from git)
#   DEB_LEVEL    how much xz compresses, from 0 to 9 (default: 6)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

missing=()
for tool in go git gzip xz; do command -v "$tool" >/dev/null || missing+=("$tool"); done
command -v dpkg-deb >/dev/null || missing+=("dpkg-deb (Debian, Ubuntu: package dpkg; Fedora: dpkg; Homebrew: dpkg)")
((${#missing[@]} == 0)) || die "missing programs: $(IFS=,; echo "${missing[*]}")"
mkdir -p build

goarch=$(go env GOARCH)
case $goarch in
386) arch=i386 ;;
arm) arch=armhf ;;
ppc64le) arch=ppc64el ;;
*) arch=$goarch ;; # amd64, arm64, riscv64, s390x …
esac
export CGO_ENABLED=${CGO_ENABLED:-0}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# version prints the Debian version. v1.2.3 becomes 1.2.3-1, v1.2.3-rc.1 becomes 1.2.3~rc.1-1, and
# the fourth commit after v1.2.3 becomes 1.2.3+4.gabc-1. Before the first tag, versions are
# ordered by the time of the commit.
version() {
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
	printf -- '-1'
}
version=${DEB_VERSION:-$(version)}

work=$(mktemp -d "$root/build/deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/tree
doc=$tree/usr/share/doc/carillon
umask 022
mkdir -p "$tree/DEBIAN" "$tree/usr/bin" "$tree/etc/carillon" "$tree/usr/lib/systemd/system" "$doc/examples" "$tree/usr/share/lintian/overrides" \
	"$tree/usr/share/bash-completion/completions" "$tree/usr/share/zsh/vendor-completions" "$tree/usr/share/fish/vendor_completions.d"

go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/carillonhq/carillon/pkg/internal/version.version=$(git describe --tags --always --dirty)" \
	-o "$tree/usr/bin/carillon" ./cmd/carillon

# A program for another architecture cannot print its manual here, so build one for this host.
program=$tree/usr/bin/carillon
if [[ $goarch != $(go env GOHOSTARCH) ]]; then
	program=$work/carillon
	env -u GOARCH -u GOARM -u CGO_ENABLED go build -buildvcs=false -o "$program" ./cmd/carillon
fi

# If the program uses the C library, its symbols show which version it requires.
depends="init-system-helpers (>= 1.54), passwd"
if LC_ALL=C grep -aq 'libc\.so\.6' "$tree/usr/bin/carillon"; then
	needs=$(LC_ALL=C grep -ao 'GLIBC_2\.[0-9]*' "$tree/usr/bin/carillon" | sort -uV | tail -1)
	depends="libc6 (>= ${needs#GLIBC_}), $depends"
fi

install -m 640 scripts/deb/agent.yaml "$tree/etc/carillon/agent.yaml"
install -m 644 scripts/deb/carillon.service scripts/deb/carillon.socket "$tree/usr/lib/systemd/system/"
install -m 644 scripts/deb/lintian-overrides "$tree/usr/share/lintian/overrides/carillon"
install -m 644 scripts/deb/copyright "$doc/copyright"
install -m 644 scripts/deb/scheduler-only.conf examples/*.yaml "$doc/examples/"
install -d "$doc/examples/receivers"
install -m 644 examples/receivers/*.yaml "$doc/examples/receivers/"
install -d "$doc/examples/prometheus" "$doc/examples/grafana"
install -m 644 deploy/prometheus/rules.yaml "$doc/examples/prometheus/carillon.yaml"
install -m 644 deploy/grafana/carillon.json "$doc/examples/grafana/"
install -m 755 scripts/deb/postinst scripts/deb/prerm scripts/deb/postrm "$tree/DEBIAN/"
install -d "$doc/docs/how-to"
install -m 644 README.md "$doc/"
install -m 644 docs/*.md "$doc/docs/"
install -m 644 docs/how-to/*.md "$doc/docs/how-to/"
CARILLON=$program bash scripts/cli-docs.sh "$doc/docs/cli.md" >/dev/null
bash scripts/api-docs.sh "$doc/docs/api.md" >/dev/null
env -u GOARCH -u GOARM CGO_ENABLED=0 go run ./scripts/records -page "$doc/docs/records.md"
chmod 644 "$doc"/docs/{cli,api,records}.md
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}' ./cmd/carillon | sort -u >"$doc/modules.txt"
install -m 644 CHANGELOG.md "$doc/changelog"
maintainer=${DEB_MAINTAINER:-The Carillon authors <carillonhq@users.noreply.github.com>}
cat >"$doc/changelog.Debian" <<END
carillon ($version) unstable; urgency=medium

  * Built from $(git describe --tags --always); what is new is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
"$program" man --dir "$tree/usr/share/man"
"$program" completion bash >"$tree/usr/share/bash-completion/completions/carillon"
"$program" completion zsh >"$tree/usr/share/zsh/vendor-completions/_carillon"
"$program" completion fish >"$tree/usr/share/fish/vendor_completions.d/carillon.fish"
find "$doc" "$tree/usr/share/man" -type f ! -name copyright ! -path "$doc/examples/*" ! -name modules.txt -exec gzip -9n {} +

echo /etc/carillon/agent.yaml >"$tree/DEBIAN/conffiles"
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' md5sum) >"$work/md5sums"
mv "$work/md5sums" "$tree/DEBIAN/md5sums"
cat >"$tree/DEBIAN/control" <<END
Package: carillon
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Suggests: etcd-server
Section: admin
Priority: optional
Homepage: https://github.com/carillonhq/carillon
Description: cron for a fleet: schedules tasks and runs them on many hosts
 One daemon runs on every host. The daemons coordinate through etcd, share the
 scheduling, and run the tasks. When a host fails, the others take over its
 tasks. Every tick of a task has exactly one recorded outcome, with a reason:
 it ran, was skipped, or was missed.
 .
 A single host needs nothing else: the daemon contains an etcd, which is
 enabled by default.
END

find "$tree" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
deb=build/carillon_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz "-z${DEB_LEVEL:-6}" --build "$tree" "$deb" >/dev/null
bash scripts/deb/check.sh "$deb"
say "$deb"
