// Package factorytest makes factories for tests of commands: with a fixed clock, an
// environment of their own, and streams that the test reads.
package factorytest

import (
	"bytes"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/task"
)

// Desk is a factory and what surrounds it.
type Desk struct {
	*factory.Factory
	Out, Errs bytes.Buffer
	Vars      map[string]string // the environment
}

// New makes a desk whose standard input has a text. It is 20 November 2026, 22:12 UTC.
func New(in string) *Desk {
	d := &Desk{Vars: map[string]string{}}
	d.Factory = factory.New(factory.IO{In: strings.NewReader(in), Out: &d.Out, Err: &d.Errs, Env: func(k string) string { return d.Vars[k] }})
	d.Now = func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) }
	d.Terminal = func(any) (int, bool) { return 0, false }
	d.Format, d.TimeMode, d.Color, d.Timeout = output.FormatTable, output.TimeRelative, "auto", time.Second
	return d
}

// At is a time of RFC 3339.
func At(s string) task.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return task.At(t)
}
