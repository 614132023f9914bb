package settings

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// TestRewrite_SaysWhatItIsTold: after any change, the text contains the new value, and keeps its comments if it
// is in the usual form.
func TestRewrite_SaysWhatItIsTold(t *testing.T) {
	value := rapid.SampledFrom([]string{"", "", "x", "true", "1", "a b", "#c", "it's \"so\"", "/a/b:c", "https://h:7070", "null", "~/t", "é"})
	spec := rapid.Custom(func(t *rapid.T) Context {
		return Context{Server: value.Draw(t, "server"), CAFile: value.Draw(t, "ca"), TokenFile: value.Draw(t, "file"),
			Token: value.Draw(t, "token"), Namespace: value.Draw(t, "namespace"), ReadOnly: rapid.Bool().Draw(t, "read_only"), Insecure: rapid.Bool().Draw(t, "insecure")}
	})

	file := rapid.Custom(func(t *rapid.T) File {
		f := File{Contexts: rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "prod", "c.d"}), spec, 0, 3).Draw(t, "contexts")}
		if names := slices.Sorted(maps.Keys(f.Contexts)); len(names) > 0 && rapid.Bool().Draw(t, "current") {
			f.Current = names[0]
		}
		return f
	})

	rapid.Check(t, func(t *rapid.T) {
		was, now := file.Draw(t, "was"), file.Draw(t, "now")
		b, err := json.Marshal(was)
		if err != nil {
			t.Fatal(err)
		}

		y, err := manifest.WriteYAML(b)
		if err != nil {
			t.Fatal(err)
		}

		text, kept, err := rewriteConfig("# mine\n"+string(y), was, now)
		if err != nil {
			t.Fatal(err)
		}

		var got File
		if err := manifest.Document("config.yaml", []byte(text), &got); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}

		if !sameConfig(got, now) {
			t.Errorf("got %+v, want %+v of\n%s", got, now, text)
		}

		if kept != strings.HasPrefix(text, "# mine\n") && now.Current == was.Current {
			t.Errorf("kept is %v for\n%s", kept, text)
		}
	})
}

// TestWritePrivateFile_ReplacesWhatALinkLeadsTo, and only the owner can read it.
func TestWritePrivateFile_ReplacesWhatALinkLeadsTo(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "real", "config.yaml"), filepath.Join(dir, "config.yaml")
	if err := WritePrivateFile(target, []byte("one")); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(target, 0o644); err != nil {
		t.Fatal(err)
	}

	if err := WritePrivateFile(link, []byte("two")); err != nil {
		t.Fatal(err)
	}

	b, err := os.ReadFile(target)
	info, _ := os.Lstat(link)
	now, _ := os.Stat(target)
	if err != nil || string(b) != "two" || info.Mode()&os.ModeSymlink == 0 || now.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v, %v", b, err, info.Mode(), now.Mode())
	}

	if left, _ := os.ReadDir(filepath.Dir(target)); len(left) != 1 {
		t.Errorf("%v is left", left)
	}

	if err := WritePrivateFile(filepath.Join(dir, "config.yaml", "x"), nil); err == nil {
		t.Error("a file is no directory")
	}
}
