package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rpmutils "github.com/sassoftware/go-rpmutils"
)

// releaseDir returns the directory with the files of a release, which make release-test has built.
func releaseDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("CARILLON_RELEASE")
	if dir == "" {
		t.Skip("needs a release: make release-test, or make image-test")
	}

	return dir
}

// open opens the only file of the release whose name matches a pattern.
func open(t *testing.T, pattern string) *os.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(releaseDir(t), pattern))
	if err != nil || len(names) != 1 {
		t.Fatalf("%s: %v, %v", pattern, names, err)
	}

	f, err := os.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })

	return f
}

// rpmFiles returns the files of a package with their modes and owners.
func rpmFiles(t *testing.T, pattern string) map[string]string {
	t.Helper()
	p, err := rpmutils.ReadRpm(bufio.NewReader(open(t, pattern)))
	if err != nil {
		t.Fatal(err)
	}

	list, err := p.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}

	files := map[string]string{}
	for _, f := range list {
		if f.Mode()&0o170000 == 0o100000 {
			files[strings.TrimPrefix(f.Name(), "/")] = fmt.Sprintf("%04o %s:%s", f.Mode()&0o7777, f.UserName(), f.GroupName())
		}
	}

	return files
}

// apkFiles is rpmFiles for a package of Alpine: tar archives one after the other, each compressed, without an end except for the last.
func apkFiles(t *testing.T, pattern string) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bufio.NewReader(open(t, pattern)))
	if err != nil {
		t.Fatal(err)
	}

	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			files[h.Name] = fmt.Sprintf("%04o %s:%s", h.Mode, h.Uname, h.Gname)
		}
	}
}

func TestPackages_HaveTheFilesOfTheirDistribution(t *testing.T) {
	common := map[string]string{
		"usr/bin/carillon": "0755 root:root", "etc/carillon/agent.yaml": "0640 root:root", "usr/lib/systemd/system/carillon.service": "0644 root:root",
		"usr/lib/systemd/system/carillon.socket": "0644 root:root", "usr/share/man/man1/carillon-task-create.1.gz": "0644 root:root",
		"usr/share/bash-completion/completions/carillon": "0644 root:root", "usr/share/zsh/site-functions/_carillon": "0644 root:root",
		"usr/share/licenses/carillon/LICENSE": "0644 root:root", "usr/share/doc/carillon/docs/how-to/install.md.gz": "0644 root:root",
	}

	var lists []map[string]string
	for _, arch := range []string{"x86_64", "aarch64"} {
		rpm, apk := rpmFiles(t, "*."+arch+".rpm"), apkFiles(t, "*_"+arch+".apk")
		if apk["etc/init.d/carillon"] != "0755 root:root" || apk[".post-install"] == "" {
			t.Errorf("%s.apk has no service: %s, or no script: %s", arch, apk["etc/init.d/carillon"], apk[".post-install"])
		}
		maps.DeleteFunc(apk, func(name, _ string) bool { return strings.HasPrefix(name, ".") || name == "etc/init.d/carillon" })

		for format, files := range map[string]map[string]string{"rpm": rpm, "apk": apk} {
			for name, want := range common {
				if files[name] != want {
					t.Errorf("%s.%s: %s: %q, want %s", arch, format, name, files[name], want)
				}
			}
			for name := range files {
				if strings.Contains(name, "lintian") || strings.Contains(name, "vendor-completions/_") || strings.Contains(name, "changelog.Debian") {
					t.Errorf("%s.%s has a file for Debian: %s", arch, format, name)
				}
			}
			lists = append(lists, files)
		}
	}

	for _, other := range lists[1:] {
		if a, b := slices.Sorted(maps.Keys(lists[0])), slices.Sorted(maps.Keys(other)); !slices.Equal(a, b) {
			t.Errorf("packages differ: %v\n%v", a, b)
		}
	}
}

func TestRPM_RunsItsScripts(t *testing.T) {
	p, err := rpmutils.ReadRpm(bufio.NewReader(open(t, "*.x86_64.rpm")))
	if err != nil {
		t.Fatal(err)
	}

	post, err := p.Header.GetString(rpmutils.POSTIN)
	if err != nil || !strings.Contains(post, "groupadd --system carillon") {
		t.Errorf("after the installation: %q, %v", post, err)
	}
	if _, err := p.Header.GetString(rpmutils.PREUN); err != nil {
		t.Errorf("before the removal: %v", err)
	}
}

// Each archive has a list of the modules of its program. Only programs for Linux contain an etcd.
func TestSBOM_ListsTheModulesOfEachProgram(t *testing.T) {
	for target, isNode := range map[string]bool{"linux-amd64": true, "linux-arm64": true, "darwin-amd64": false, "darwin-arm64": false, "windows-amd64": false, "windows-arm64": false} {
		var sbom struct {
			BOMFormat  string
			Components []struct{ Name, Version, PURL string }
		}
		if err := json.NewDecoder(open(t, "carillon-*-"+target+".cdx.json")).Decode(&sbom); err != nil || sbom.BOMFormat != "CycloneDX" {
			t.Errorf("%s: %q, %v", target, sbom.BOMFormat, err)
		}

		names := map[string]bool{}
		for _, c := range sbom.Components {
			names[c.Name] = c.Version != "" && c.PURL != ""
		}
		if !names["github.com/spf13/cobra"] || !names["std"] || names["go.etcd.io/etcd/server/v3"] != isNode {
			t.Errorf("%s: %d components, cobra %v, std %v, etcd %v", target, len(names), names["github.com/spf13/cobra"], names["std"], names["go.etcd.io/etcd/server/v3"])
		}
	}
}

// Every other file is in SHA256SUMS, so that one signature covers all. sha256sum verifies the sums.
func TestChecksums_CoverEveryFile(t *testing.T) {
	sums, err := io.ReadAll(open(t, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}

	err = fs.WalkDir(os.DirFS(releaseDir(t)), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(name, "SHA256SUMS") && !bytes.Contains(sums, []byte("  "+name+"\n")) {
			t.Errorf("%s has no checksum", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
