package output

import (
	"bytes"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// testPrinter is a printer with a fixed clock and streams that a test reads.
type testPrinter struct {
	*Printer
	out, errs bytes.Buffer
	env       map[string]string
}

func newTestPrinter() *testPrinter {
	d := &testPrinter{env: map[string]string{}}
	d.Printer = &Printer{
		Out: &d.out, Err: &d.errs, Env: func(k string) string { return d.env[k] },
		Now:      func() time.Time { return time.Date(2026, 11, 20, 22, 12, 0, 0, time.UTC) },
		Terminal: func(any) (int, bool) { return 0, false },
		Format:   FormatTable, TimeMode: TimeRelative, Color: "auto",
	}

	return d
}

func at(s string) task.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return task.At(t)
}
