package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNodeKey_IsMadeOnceAndPrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, nodeKeyFile)
	if err := os.WriteFile(path+".new", []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}

	first, err := OpenNodeKey(dir)
	if err != nil {
		t.Fatal(err)
	}

	again, err := OpenNodeKey(dir)
	if err != nil || !first.Equal(again) {
		t.Errorf("at the second start: another key, %v", err)
	}

	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	other, err := OpenNodeKey(t.TempDir())
	if err != nil || first.Equal(other) {
		t.Errorf("another node has the same key, %v", err)
	}
}

func TestNodeKey_RefusesWhatOthersMayHavePutThere(t *testing.T) {
	good := t.TempDir()
	if _, err := OpenNodeKey(good); err != nil {
		t.Fatal(err)
	}

	key, err := os.ReadFile(filepath.Join(good, nodeKeyFile))
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name string
		put  func(path string) error
		want string
		root bool
	}{
		{"readable by others", func(p string) error { return os.Chmod(p, 0o640) }, "mode 0640", false},
		{"a link", func(p string) error {
			return errors.Join(os.Remove(p), os.Symlink(filepath.Join(good, nodeKeyFile), p))
		}, "symbolic link", false},
		{"a pipe", func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) }, "not a regular file", false},
		{"empty", func(p string) error { return os.WriteFile(p, nil, 0o600) }, "damaged", false},
		{"no key", func(p string) error {
			return os.WriteFile(p, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), 0o600)
		}, "no Ed25519 key", false},
		{"more than a key", func(p string) error { return os.WriteFile(p, append(key, key...), 0o600) }, "damaged", false},
		{"another user's", func(p string) error { return os.Chown(p, 65534, 65534) }, "belongs to user 65534", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("only root can give a file to another user")
			}

			dir := t.TempDir()
			path := filepath.Join(dir, nodeKeyFile)
			if err := os.WriteFile(path, key, 0o600); err != nil {
				t.Fatal(err)
			}

			if err := c.put(path); err != nil {
				t.Fatal(err)
			}

			if _, err := OpenNodeKey(dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
