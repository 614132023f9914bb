package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// fileAt returns a policy file that this user may write; root's, if the user is root.
func fileAt(t *testing.T, text string) (*File, *observer.ObservedLogs) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, text)
	core, logs := observer.New(zap.InfoLevel)

	return &File{path: path, owner: uint32(os.Geteuid()), log: zap.New(core)}, logs
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFile_IsReadAnewWhenItChanges(t *testing.T) {
	f, logs := fileAt(t, "users: [a]")
	said := func() string {
		p, err := f.Policy()
		if err != nil {
			return "error"
		}
		return strings.Join(p.Users, ",")
	}

	for _, step := range []struct{ text, want string }{
		{"users: [a]", "a"}, {"users: [b]", "b"}, {"users: [c", "error"}, {"users: [c", "error"}, {"", "error"}, {"users: [d]", "d"}, {"users: [e]", "e"},
	} {
		write(t, f.path, step.text) // within one tick of the file clock and with the same length
		if got := said(); got != step.want {
			t.Errorf("%q is taken for %q", step.text, got)
		}
	}

	if err := os.Remove(f.path); err != nil || said() != "error" {
		t.Error("a file that is gone allows something", err)
	}

	write(t, f.path+".new", "users: [f]")

	if err := os.Rename(f.path+".new", f.path); err != nil || said() != "f" {
		t.Error("a file that was put in its place is not read", err)
	}

	if n := logs.FilterMessageSnippet("starts no runs").Len(); n != 3 {
		t.Errorf("%d errors are logged, of three faults", n)
	}
}

func TestFile_CountsOnlyIfNobodyElseCanChangeIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	for want, make := range map[string]func(){
		"": func() {},
		"policy.yaml can be written by users other than root": func() { _ = os.Chmod(path, 0o664) },
		dir + " can be written by users other than root":      func() { _ = os.Chmod(dir, 0o777) },
		"is not a regular file":                               func() { _ = os.Remove(path); _ = os.Mkdir(path, 0o755) },
	} {
		_ = os.RemoveAll(path)
		_ = os.Chmod(dir, 0o755)
		write(t, path, "{}")
		make()

		f := &File{path: path, owner: uint32(os.Geteuid()), log: zap.NewNop()}
		if _, err := f.Policy(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}

	_ = os.RemoveAll(path)
	_ = os.Chmod(dir, 0o755)
	write(t, path, "{}")

	if os.Geteuid() == 0 {
		_ = os.Chown(path, 65534, 65534)
	}

	if _, err := Open(path, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "must belong to root") {
		t.Errorf("a file of another user counts: %v", err)
	}

	if _, err := Open("policy.yaml", zap.NewNop()); err == nil {
		t.Error("a path that depends on where the daemon was started counts")
	}
}

// TestFile_CountsOnlyIfNobodyElseCanLeadToAnother tests that a link on the path which others may replace is
// rejected, because it could lead to any file of root.
func TestFile_CountsOnlyIfNobodyElseCanLeadToAnother(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("policy.yaml"), "{}")

	for _, d := range []string{"open", "own"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	for from, to := range map[string]string{
		"open/link": at("policy.yaml"), "own/link": "../policy.yaml", "own/through": at("open/link"), "own/dir": "..", "own/round": "round", "own/nowhere": "none",
	} {
		if err := os.Symlink(to, at(from)); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Chmod(at("open"), 0o777); err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string]string{
		"own/link": "", "own/dir/policy.yaml": "", "own/../policy.yaml": "", "open/link": "open can be written by users other than root", "own/through": "open can be written by users other than root",
		"own/round": "too many symbolic links", "own/nowhere": "none: no such file",
	} {
		f := &File{path: dir + "/" + path, owner: uint32(os.Geteuid()), log: zap.NewNop()}
		if _, err := f.Policy(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", path, err, want)
		}
	}
}

// TestFile_LooksAtTheDirectoriesAgain tests that the directories are checked again. They may change their owner
// while the file is unchanged.
func TestFile_LooksAtTheDirectoriesAgain(t *testing.T) {
	f, _ := fileAt(t, "{}")
	if _, err := f.Policy(); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(filepath.Dir(f.path), 0o777); err != nil {
		t.Fatal(err)
	}

	f.seen.settled, f.read = true, f.read.Add(-recheckAfter)
	if _, err := f.Policy(); err == nil {
		t.Error("it counts, though others can put another in its place")
	}
}
