package cli

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// TestRewrite_SaysWhatItIsTold: whatever changes, the text then says so, and the
// comments of a text in the usual form are there still.
func TestRewrite_SaysWhatItIsTold(t *testing.T) {
	value := rapid.SampledFrom([]string{"", "", "x", "true", "1", "a b", "#c", "it's \"so\"", "/a/b:c", "https://h:7070", "null", "~/t", "é"})
	spec := rapid.Custom(func(t *rapid.T) contextSpec {
		return contextSpec{Server: value.Draw(t, "server"), CAFile: value.Draw(t, "ca"), TokenFile: value.Draw(t, "file"),
			Token: value.Draw(t, "token"), Namespace: value.Draw(t, "namespace"), ReadOnly: rapid.Bool().Draw(t, "read_only"), Insecure: rapid.Bool().Draw(t, "insecure")}
	})
	file := rapid.Custom(func(t *rapid.T) contextFile {
		f := contextFile{Contexts: rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "prod", "c.d"}), spec, 0, 3).Draw(t, "contexts")}
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
		text, kept, err := rewrite("# mine\n"+string(y), was, now)
		if err != nil {
			t.Fatal(err)
		}
		var got contextFile
		if err := manifest.Document("config.yaml", []byte(text), &got); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if !same(got, now) {
			t.Errorf("got %+v, want %+v of\n%s", got, now, text)
		}
		if kept != strings.HasPrefix(text, "# mine\n") && now.Current == was.Current {
			t.Errorf("kept is %v for\n%s", kept, text)
		}
	})
}

// TestWritePrivate_ReplacesWhatALinkLeadsTo, readable by its owner only.
func TestWritePrivate_ReplacesWhatALinkLeadsTo(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "real", "config.yaml"), filepath.Join(dir, "config.yaml")
	if err := writePrivate(target, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(target, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writePrivate(link, []byte("two")); err != nil {
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
	if err := writePrivate(filepath.Join(dir, "config.yaml", "x"), nil); err == nil {
		t.Error("a file is no directory")
	}
}

// TestCompletion_IsRemembered for a moment: not longer, and not for others.
func TestCompletion_IsRemembered(t *testing.T) {
	d := newDesk("")
	d.env["HOME"] = t.TempDir()
	asked := 0
	fetch := func() ([]offer, error) { asked++; return []offer{{Word: "a"}}, nil }
	look := func(kind string) {
		t.Helper()
		if got, err := d.remembered(kind, fetch); err != nil || len(got) != 1 || got[0].Word != "a" {
			t.Fatalf("%v, %v", got, err)
		}
	}
	for i, step := range []struct {
		want int
		do   func()
	}{
		{1, func() { look("tasks") }},
		{1, func() { look("tasks") }},
		{2, func() { look("nodes") }},
		{3, func() { d.ns = "other"; look("tasks") }},
		{4, func() { d.server = "http://h:1"; look("tasks") }},
		{4, func() { look("tasks") }},
		{5, func() { now := d.now().Add(cacheLife); d.now = func() time.Time { return now }; look("tasks") }},
	} {
		if step.do(); asked != step.want {
			t.Errorf("step %d: asked %d times, not %d", i, asked, step.want)
		}
	}
	files, err := filepath.Glob(filepath.Join(d.env["HOME"], ".cache", "carillon", "complete", "*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if info, _ := os.Stat(f); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", f, info.Mode())
		}
	}
}

// TestContexts_HaveCAsOfTheirOwn: one trusts its own server, and no other does.
func TestContexts_HaveCAsOfTheirOwn(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"items": []}`))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	config := "contexts:\n  good: {server: \"" + s.URL + "\", ca_file: ca.pem}\n  bad: {server: \"" + s.URL + "\"}\n"
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"CARILLON_CONFIG": filepath.Join(dir, "config.yaml")}
	for name, want := range map[string]int{"good": 0, "bad": exitUnavailable} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), []string{"task", "list", "--context", name, "-o", "json"}, IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(k string) string { return env[k] }})
		if code != want {
			t.Errorf("%s: %d, %s%s", name, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := Main(t.Context(), []string{"task", "list", "--cert-file", "x"}, IO{In: strings.NewReader(""), Out: &out, Err: &errs, Env: func(k string) string { return env[k] }}); code != exitUsage {
		t.Errorf("half a certificate: %d, %s", code, errs.String())
	}
}
