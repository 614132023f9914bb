package httpapi

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Clock is a wall clock.
type Clock func() time.Time

// Stamp returns what time it is as records have it.
func (c Clock) Stamp() task.Time { return task.At(c()) }
