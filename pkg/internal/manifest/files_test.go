package manifest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

func TestFiles_ListsADirectoryInOrder(t *testing.T) {
	dir := t.TempDir()

	for _, f := range []string{"b.yaml", "a.yml", "sub/c.json", "sub/d.jsonl", "sub/e.ndjson", "notes.txt", ".hidden.yaml", ".git/e.yaml"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	got, err := manifest.Files(dir)
	if err != nil {
		t.Fatal(err)
	}

	for i := range got {
		got[i] = strings.TrimPrefix(got[i], dir+"/")
	}

	if want := []string{"a.yml", "b.yaml", "sub/c.json", "sub/d.jsonl", "sub/e.ndjson"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	if got, err := manifest.Files(filepath.Join(dir, "notes.txt")); err != nil || len(got) != 1 {
		t.Errorf("a file that is named is taken: %v, %v", got, err)
	}

	if _, err := manifest.Files(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no task files") {
		t.Errorf("an empty directory: %v", err)
	}

	if _, err := manifest.Files(filepath.Join(dir, "nope")); err == nil || strings.Contains(err.Error(), "stat ") {
		t.Errorf("a path that is not there: %v", err)
	}
}

// A list of tasks without line ends, as programs write it, is read in one pass. Counting the columns of each token from the
// beginning of the line would take an hour here.
func TestValues_ReadsALongLine(t *testing.T) {
	const n = 80_000
	b := []byte("[" + strings.Repeat(`{"name": "a", "schedule": "@daily"},`, n) + `{"name": "z"}]`)

	values, err := manifest.Values("tasks.json", b)
	if err != nil {
		t.Fatal(err)
	}
	if items, ok := values[0].Elements(); !ok || len(items) != n+1 {
		t.Errorf("%d elements", len(items))
	}
}
