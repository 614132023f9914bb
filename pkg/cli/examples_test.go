package cli_test

import (
	"path/filepath"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// TestExamples_AreTasks checks that each example decodes, is valid, and has a schedule and a description.
func TestExamples_AreTasks(t *testing.T) {
	const dir = "../../examples"
	files, err := manifest.Files(dir)
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]string{}
	for _, file := range files {
		b, err := manifest.Load(file)
		if err != nil {
			t.Fatal(err)
		}

		objects, err := manifest.Read(filepath.Base(file), b, "default")
		if err != nil {
			t.Error(err)
		}

		if err == nil && len(objects) == 0 {
			t.Errorf("%s: no task in there", file)
		}

		for _, o := range objects {
			if o.Err != nil {
				t.Error(o.Err)
			}

			if o.Spec.Description == "" {
				t.Errorf("%s: %s has no description", file, o.Spec.Name)
			}

			if other := names[o.Spec.Name]; other != "" {
				t.Errorf("%s: %s is in %s too", file, o.Spec.Name, other)
			}

			names[o.Spec.Name] = file
		}
	}

	if len(names) < 6 {
		t.Errorf("only %d tasks in %s", len(names), dir)
	}
}
