package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// newRoot returns a root file system that contains only these programs of this host, with their libraries.
func newRoot(t *testing.T, programs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}

		libraries, _ := exec.Command("ldd", path).Output() // fails for a static program
		for _, file := range append(strings.Fields(string(libraries)), path) {
			if !filepath.IsAbs(file) {
				continue
			}

			content, err := os.ReadFile(file)
			if err == nil {
				err = errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755), os.WriteFile(filepath.Join(root, file), content, 0o755))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	return root
}

// The scripts of the package work in a root without systemd, such as that of an image. What the administrator owns stays after a removal.
func TestRPM_IsInstalledAndRemovedWithoutSystemd(t *testing.T) {
	path, err := filepath.Abs(open(t, "carillon-*.x86_64.rpm").Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("rpm"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and the program rpm, which Debian has, too")
	}

	root := newRoot(t, "/bin/sh", "grep", "groupadd")
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(root, name))
		return string(b)
	}
	rpm := func(args ...string) {
		t.Helper()
		// The database of this root has no packages, so their dependencies are not checked.
		out, err := exec.Command("rpm", append([]string{"--root", root, "--dbpath", "/var/lib/rpm", "--nodeps"}, args...)...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "scriptlet failed") { // a warning for rpm
			t.Fatalf("rpm %q: %v: %s", args, err, out)
		}
	}

	write("/dev/null", "")
	write("/etc/group", "root:x:0:\n")
	write("/var/lib/carillon/keep", "")
	for round := range 2 { // the group exists already the second time
		rpm("-i", path)
		if n := strings.Count(read("/etc/group"), "\ncarillon:"); n != 1 {
			t.Fatalf("round %d: %d groups carillon: %s", round, n, read("/etc/group"))
		}
		for name, want := range map[string]os.FileMode{"/etc/carillon/agent.yaml": 0o640, "/usr/bin/carillon": 0o755} {
			info, err := os.Stat(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			if owner := info.Sys().(*syscall.Stat_t); info.Mode() != want || owner.Uid != 0 || owner.Gid != 0 {
				t.Errorf("%s: mode %v, owner %d:%d", name, info.Mode(), owner.Uid, owner.Gid)
			}
		}

		changed := fmt.Sprint("name: n", round)
		write("/etc/carillon/agent.yaml", changed)
		rpm("-e", "carillon")
		if _, err := os.Stat(filepath.Join(root, "/usr/bin/carillon")); err == nil {
			t.Errorf("round %d: the program is still there", round)
		}
		if _, err := os.Stat(filepath.Join(root, "/var/lib/carillon/keep")); err != nil || read("/etc/carillon/agent.yaml.rpmsave") != changed || !strings.Contains(read("/etc/group"), "carillon") {
			t.Errorf("round %d: %v, settings %q, groups %s", round, err, read("/etc/carillon/agent.yaml.rpmsave"), read("/etc/group"))
		}
	}
}
