package accesscontrol

import (
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// dryRunQuery is the parameter of routes that support a dry run.
type dryRunQuery struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Checks everything but writes nothing."`
}

// wouldChange returns how a write would change a record. The fields that the server sets must be equal in both. The answer
// shows what the record has now, so the caller must have the right to read it: the right to write it is not enough.
func wouldChange[T any](exists bool, before, after T) *client.Change {
	c := &client.Change{Result: client.Created, Fields: task.Compare(before, after)}
	switch {
	case !exists:
		for i := range c.Fields {
			c.Fields[i].From = nil // there was no earlier value
		}
	case len(c.Fields) == 0:
		c.Result = client.Unchanged
	default:
		c.Result = client.Configured
	}

	return c
}
