package filetrust_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carillonhq/carillon/pkg/filetrust"
)

// TestOpenDir_RefusesWhatOthersCanChange has a case for each way in which another user could replace a directory
// on the path.
func TestOpenDir_RefusesWhatOthersCanChange(t *testing.T) {
	t.Parallel()

	owner := uint32(os.Geteuid())

	for name, c := range map[string]struct {
		build func(top string) error
		path  string
		want  string // part of the error; "": the directory is opened
	}{
		"own": {
			build: func(top string) error { return mkdir(top, "a", 0o755) },
			path:  "a",
		},
		"below a sticky directory": {
			build: func(top string) error {
				return errors.Join(mkdir(top, "tmp", 0o777|os.ModeSticky), mkdir(top, "tmp/a", 0o700))
			},
			path: "tmp/a",
		},
		"through an own link": {
			build: func(top string) error { return errors.Join(mkdir(top, "a", 0o755), os.Symlink("a", top+"/link")) },
			path:  "link",
		},
		"sticky itself": {
			build: func(top string) error { return mkdir(top, "tmp", 0o777|os.ModeSticky) },
			path:  "tmp",
			want:  "tmp can be written by users other than",
		},
		"writable by a group": {
			build: func(top string) error { return mkdir(top, "a", 0o775) },
			path:  "a",
			want:  "a can be written by users other than",
		},
		"below a directory writable by a group": {
			build: func(top string) error { return errors.Join(mkdir(top, "a", 0o775), mkdir(top, "a/b", 0o755)) },
			path:  "a/b",
			want:  "a can be written by users other than",
		},
		"through a link that others can replace": {
			build: func(top string) error {
				return errors.Join(mkdir(top, "a", 0o755), mkdir(top, "open", 0o777), os.Symlink("../a", top+"/open/link"))
			},
			path: "open/link",
			want: "open can be written by users other than",
		},
		"a loop of links": {
			build: func(top string) error { return os.Symlink("loop", top+"/loop") },
			path:  "loop",
			want:  "too many symbolic links",
		},
		"missing": {
			build: func(string) error { return nil },
			path:  "a",
			want:  "no such file or directory",
		},
		"a file": {
			build: func(top string) error { return os.WriteFile(top+"/file", nil, 0o600) },
			path:  "file",
			want:  "not a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			top := t.TempDir()
			if err := errors.Join(os.Chmod(top, 0o755), c.build(top)); err != nil {
				t.Fatal(err)
			}

			dir, err := filetrust.OpenDir(filepath.Join(top, c.path), owner)
			if err == nil {
				defer dir.Close()
			}

			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestResolve_RefusesAPathOfAnotherUser(t *testing.T) {
	t.Parallel()

	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to another user")
	}

	top := t.TempDir()
	if err := errors.Join(mkdir(top, "a", 0o755), os.Chown(top+"/a", 65534, 65534)); err != nil {
		t.Fatal(err)
	}

	if _, err := filetrust.Resolve(top+"/a", 0); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("got %v", err)
	}

	if _, err := filetrust.Resolve(top+"/a", 65534); err != nil {
		t.Errorf("the owner's own directory: %v", err)
	}

	if _, err := filetrust.Resolve("a", 0); err == nil {
		t.Error("a relative path was accepted")
	}
}

func TestReadSecret_RefusesWhatOthersMade(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "token")

	for name, c := range map[string]struct {
		make func() error
		want string
	}{
		"own":             {func() error { return os.WriteFile(path, []byte("x"), 0o600) }, ""},
		"group may read":  {func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o640)) }, ""},
		"group may write": {func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o660)) }, "can be written by users other than"},
		"all may read":    {func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)) }, "can be read by all users"},
		"a link":          {func() error { return os.Symlink("/etc/passwd", path) }, "too many levels of symbolic links"},
		"a directory":     {func() error { return os.Mkdir(path, 0o700) }, "is not a regular file"},
		"a pipe":          {func() error { return syscall.Mkfifo(path, 0o600) }, "is not a regular file"},
		"another user's": {func() error {
			if os.Geteuid() != 0 {
				return os.WriteFile(path, nil, 0o666) // a similar case without root
			}
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 65534, 65534))
		}, " "},
	} {
		_ = os.Remove(path)

		if err := c.make(); err != nil {
			t.Fatal(err)
		}

		_, err := filetrust.ReadSecret(path, uint32(os.Geteuid()))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// mkdir creates a directory with exactly this mode, whatever the umask is.
func mkdir(top, name string, mode os.FileMode) error {
	path := filepath.Join(top, name)

	return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode))
}
