package readmodel

import (
	"fmt"
	"time"
)

// Busy is the error of a node that answers no query at the moment: scans take as much of its processors as they may.
type Busy struct {
	Node       string
	RetryAfter time.Duration // when the node answers the same subject again, at the earliest
}

func (b *Busy) Error() string {
	return fmt.Sprintf("node %s is busy with other queries; retry in %s", b.Node, b.RetryAfter.Round(time.Millisecond))
}
