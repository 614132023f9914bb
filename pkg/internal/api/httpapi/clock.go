package httpapi

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Clock is a wall clock.
type Clock func() time.Time

// Stamp returns the current time in the format of records.
func (c Clock) Stamp() task.Time { return task.At(c()) }
