package check

import (
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// needsOfRead returns what a read that an audit record describes needs: the right to read the output of each run.
func (j *accessJudge) needsOfRead(a *task.AuditRecord) []access.Need {
	var needs []access.Need
	for _, o := range a.Objects {
		needs = append(needs, j.needOfObject(operation{Verb: access.Output, Kind: access.Runs}, o))
	}

	return needs
}
