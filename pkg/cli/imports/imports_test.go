package imports

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
)

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

// The zone of the output says nothing about that of a log.
func TestLogZone_DoesNotFollowTime(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		local          *time.Location
		timezone, want string
	}{
		{tokyo, "", "Asia/Tokyo"},
		{tokyo, "Europe/Berlin", "Europe/Berlin"},
		{nil, "", "Local"},
	} {
		d := factorytest.New("")
		d.Local, d.TimeMode = c.local, output.TimeUTC

		got, err := (&comparison{Factory: d.Factory, timezone: c.timezone}).logZone()
		if err != nil || got.String() != c.want {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}
