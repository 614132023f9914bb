package output

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestTimes_AreShownAsAsked(t *testing.T) {
	const berlin = "Europe/Berlin"
	cases := []struct {
		mode, what string
		got        func(d *testPrinter) string
		want       string
	}{
		{TimeRelative, "coming soon", func(d *testPrinter) string { return d.FutureTime(at("2026-11-21T01:30:00Z"), berlin) }, "Sat 02:30 CET"},
		{TimeRelative, "coming, with seconds", func(d *testPrinter) string { return d.FutureTime(at("2026-11-21T01:30:05.25Z"), berlin) }, "Sat 02:30:05 CET"},
		{TimeRelative, "coming later", func(d *testPrinter) string { return d.FutureTime(at("2026-12-01T01:30:00Z"), berlin) }, "Tue 1 Dec 02:30 CET"},
		{TimeRelative, "coming next year", func(d *testPrinter) string { return d.FutureTime(at("2027-07-01T01:30:00Z"), berlin) }, "Thu 1 Jul 2027 03:30 CEST"},
		{TimeRelative, "dated", func(d *testPrinter) string { return d.DateTime(at("2026-11-21T01:30:00Z"), berlin) }, "Sat 21 Nov 02:30 CET"},
		{TimeUTC, "coming", func(d *testPrinter) string { return d.FutureTime(at("2026-11-21T01:30:00Z"), berlin) }, "2026-11-21 01:30:00 UTC"},
		{TimeTask, "coming", func(d *testPrinter) string { return d.FutureTime(at("2026-11-21T01:30:00.5Z"), berlin) }, "2026-11-21 02:30:00.500 CET"},
		{TimeTask, "an unknown zone", func(d *testPrinter) string { return d.FutureTime(at("2026-11-21T01:30:00Z"), "Mars/X") }, "2026-11-21 01:30:00 UTC"},
		{TimeRelative, "never", func(d *testPrinter) string { return d.FutureTime(task.Time{}, berlin) }, "–"},
		{TimeRelative, "gone", func(d *testPrinter) string { return d.PastTime(at("2026-11-20T01:12:00Z"), berlin) }, "21h ago"},
		{TimeRelative, "just gone", func(d *testPrinter) string { return d.PastTime(at("2026-11-20T22:11:59.9Z"), berlin) }, "now"},
		{TimeUTC, "gone", func(d *testPrinter) string { return d.PastTime(at("2026-11-20T01:12:00Z"), berlin) }, "2026-11-20 01:12:00 UTC"},
		{TimeRelative, "left", func(d *testPrinter) string { return d.TimeLeft(at("2026-11-21T01:30:00Z")) }, "3h 18m"},
		{TimeRelative, "nothing left", func(d *testPrinter) string { return d.TimeLeft(at("2026-11-20T22:12:00.5Z")) }, "now"},
	}

	for _, c := range cases {
		d := newTestPrinter()
		d.TimeMode = c.mode
		if got := c.got(d); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.mode, c.what, got, c.want)
		}
	}
}
