package task

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/client"
)

// A malicious server cannot use the name of a task to choose a path outside the directory of the export.
func TestExport_WritesNothingOutsideItsDirectory(t *testing.T) {
	for _, name := range []struct{ namespace, task string }{
		{"default", "../escaped"},
		{"default", "/escaped"},
		{"default", "a/escaped"},
		{"default", ".."},
		{"default", ""},
		{"..", "escaped"},
		{"../..", "escaped"},
		{"", "escaped"},
	} {
		top := t.TempDir()
		d := factorytest.New("")
		d.AllNamespaces = true
		x := &exporter{Factory: d.Factory, dir: filepath.Join(top, "a", "b"), force: true}

		var told client.Task
		told.Namespace, told.Name = name.namespace, name.task

		if err := x.writeFile(told, []byte(`{"name":"escaped"}`)); err == nil {
			t.Errorf("%q is a name for a file", name)
		}

		if entries, err := os.ReadDir(top); err != nil || len(entries) > 0 {
			t.Errorf("%q: wrote %v, %v", name, entries, err)
		}
	}
}
