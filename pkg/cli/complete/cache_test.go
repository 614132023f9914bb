package complete

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
)

// TestCompletion_IsRemembered for a short time only, and only for the same user.
func TestCompletion_IsRemembered(t *testing.T) {
	d := factorytest.New("")
	d.Vars["HOME"] = t.TempDir()
	asked := 0
	fetch := func() ([]Offer, error) { asked++; return []Offer{{Word: "a"}}, nil }
	look := func(kind string) {
		t.Helper()
		if got, err := cachedOffers(d.Factory, kind, fetch); err != nil || len(got) != 1 || got[0].Word != "a" {
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
		{3, func() { d.NamespaceFlag = "other"; look("tasks") }},
		{4, func() { d.ServerFlag = "http://h:1"; look("tasks") }},
		{4, func() { look("tasks") }},
		{5, func() { now := d.Now().Add(cacheTTL); d.Now = func() time.Time { return now }; look("tasks") }},
	} {
		if step.do(); asked != step.want {
			t.Errorf("step %d: asked %d times, not %d", i, asked, step.want)
		}
	}

	files, err := filepath.Glob(filepath.Join(d.Vars["HOME"], ".cache", "carillon", "complete", "*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}

	for _, f := range files {
		if info, _ := os.Stat(f); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", f, info.Mode())
		}
	}
}
