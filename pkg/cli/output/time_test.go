package output

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
		d.AboutTask(berlin)
		if got := c.got(d); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.mode, c.what, got, c.want)
		}
	}
}

// The times of a command are in one zone, unless --time task asks for that of each task.
func TestZone_IsOneForACommand(t *testing.T) {
	newYork, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}

	const berlin, tokyo = "Europe/Berlin", "Asia/Tokyo"
	for _, c := range []struct{ mode, about, of, want string }{
		{TimeRelative, "", tokyo, "America/New_York"},
		{TimeRelative, "", ReaderZone, "America/New_York"},
		{TimeRelative, berlin, tokyo, berlin},
		{TimeRelative, berlin, ReaderZone, berlin},
		{TimeRelative, "UTC", ReaderZone, "UTC"},
		{TimeLocal, berlin, tokyo, "America/New_York"},
		{TimeTask, "", tokyo, tokyo},
		{TimeTask, "", ReaderZone, "America/New_York"},
		{TimeTask, berlin, ReaderZone, berlin},
		{TimeUTC, berlin, tokyo, "UTC"},
	} {
		d := newTestPrinter()
		d.TimeMode, d.Local = c.mode, newYork
		if c.about != "" {
			d.AboutTask(c.about)
		}
		if got := d.Zone(c.of).String(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestZoneName_IsThatOfTheHostsCron(t *testing.T) {
	for name, c := range map[string]struct{ tz, file, link, want string }{
		"TZ":            {tz: "Asia/Tokyo", file: "Europe/Berlin", want: "Asia/Tokyo"},
		"TZ, a colon":   {tz: ":Asia/Tokyo", want: "Asia/Tokyo"},
		"the file":      {file: "Europe/Berlin\n", link: "/usr/share/zoneinfo/Asia/Tokyo", want: "Europe/Berlin"},
		"the link":      {link: "/usr/share/zoneinfo/Asia/Tokyo", want: "Asia/Tokyo"},
		"a link in etc": {link: "../usr/share/zoneinfo/Europe/Berlin", want: "Europe/Berlin"},
		"UTC's alias":   {file: "Etc/UTC", want: "UTC"},
		"nothing":       {want: "UTC"},
		"an odd TZ":     {tz: "CET-1CEST", file: "Europe/Berlin", want: "Europe/Berlin"},
		"no name":       {link: "/etc/clock", want: ""},
	} {
		etc := t.TempDir()

		if c.file != "" {
			if err := os.WriteFile(filepath.Join(etc, "timezone"), []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}

		if c.link != "" {
			if err := os.Symlink(c.link, filepath.Join(etc, "localtime")); err != nil {
				t.Fatal(err)
			}
		}

		got, err := ZoneName(c.tz, EtcDir(etc))
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
