package restore

import (
	"testing"

	mutants "github.com/carillonhq/carillon/pkg/internal/test/mutant" // the overlay declares a function mutant
)

// Each mutant of the preparation of a restore must fail the test that stands for its promise.
func TestMutants_OfPreparationsAreCaught(t *testing.T) {
	catches := map[string]string{
		"bump-relative":    "TestRestore_RevisionsRiseWhateverBackupIsRestored",
		"same-token":       "TestRestore_RevisionsRiseWhateverBackupIsRestored",
		"silence-is-death": "TestRestore_RefusesSilentNodes",
	}

	for _, name := range mutants.Names(mutants.Preparations) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mutants.FailsTest(t, name, catches[name])
		})
	}
}
