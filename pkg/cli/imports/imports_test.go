package imports

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestZoneOf_IsThatOfThisHostsCron(t *testing.T) {
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

		got, err := zoneOf(c.tz, etcDir(etc))
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// cron does not read a system crontab that others could change.
func TestIsWritableByOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "crontab")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	for mode, want := range map[os.FileMode]bool{0o644: false, 0o664: true, 0o646: true, 0o600: false} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if got := isWritableByOthers(file); got != want {
			t.Errorf("%o: %t", mode, got)
		}
	}
}

func TestIsOfThisHost(t *testing.T) {
	for file, want := range map[string]bool{
		"/etc/crontab": true, "/etc/cron.d/../cron.d/x": true, "/var/spool/cron/crontabs/ann": true, "stdin": true,
		"crontab": false, "/srv/web-1/etc/crontab": false,
	} {
		if got := isOfThisHost(file); got != want {
			t.Errorf("%s: %t", file, got)
		}
	}
}

// An enabled timer is a link, also that of an instance of a template. Its service is beside the target of the link.
func TestAddServices_FollowsLinks(t *testing.T) {
	dir := t.TempDir()
	lib, wants := filepath.Join(dir, "lib"), filepath.Join(dir, "timers.target.wants")
	for _, d := range []string{lib, wants} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"scrub@.timer", "scrub@.service"} {
		if err := os.WriteFile(filepath.Join(lib, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(wants, "scrub@tank.timer")
	if err := os.Symlink("../lib/scrub@.timer", link); err != nil {
		t.Fatal(err)
	}

	resolved, err := filepath.EvalSymlinks(lib)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := addServices([]string{link}), []string{link, filepath.Join(resolved, "scrub@.service")}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
