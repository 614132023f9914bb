package importer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestCalendar_BecomesCron(t *testing.T) {
	for event, want := range map[string]string{
		"daily": "0 0 * * *", "Hourly": "0 * * * *", "weekly": "0 0 * * 1", "monthly": "0 0 1 * *", "yearly": "0 0 1 1 *", "minutely": "* * * * *",
		"quarterly": "0 0 1 1,4,7,10 *", "semiannually": "0 0 1 1,7 *",
		"*-*-* 02:30:00": "30 2 * * *", "02:30": "30 2 * * *", "*-*-* 6,18:00": "0 6,18 * * *", "*:0/15": "0-59/15 * * * *", "*:*:0/10": "0-59/10 * * * * *",
		"*-*-1..7 03:00": "0 3 1-7 * *", "Mon..Fri 09:00": "0 9 * * 1,2,3,4,5", "Sat,Sun *-*-* 10:00": "0 10 * * 0,6", "Fri..Sun 1:00": "0 1 * * 0,5,6",
		"Mon": "0 0 * * 1", "Mon..Sun 1:00": "0 1 * * *", "Sun *-*-1..7 04:00": "0 4 * * 0#1", "Mon,Tue *-*-8..14 04:00": "0 4 * * 1#2,2#2",
		"*-02~01": "0 0 L 2 *", "12-24 18:00:30": "30 0 18 24 12 *", "*-*-* 00/6:00": "0 0-23/6 * * *", "Sunday 3:10": "10 3 * * 0",
	} {
		got, zone, err := importer.Calendar(event, "UTC")
		if err != nil || got != want || zone != "" {
			t.Errorf("%s: %q %q, %v", event, got, zone, err)
		}

		if err := schedule.Check(task.Timing{Schedule: task.Schedules{got}, Timezone: "UTC", DST: task.Defaults().DST}); err != nil {
			t.Errorf("%s: %v", event, err)
		}
	}

	if got, zone, err := importer.Calendar("*-*-* 04:00 Europe/Berlin", "UTC"); err != nil || got != "0 4 * * *" || zone != "Europe/Berlin" {
		t.Errorf("%s %s %v", got, zone, err)
	}
}

func TestCalendar_RefusesWhatHasNoCron(t *testing.T) {
	for event, want := range map[string]string{
		"2026-*-24 18:00": "the year \"2026\" is only supported in a single time", "2026..2028-12-24": "single time", "2027-02-29": "never elapses", "Mon 2026-12-24": "never elapses",
		"@1.5": "is not a number of seconds", "*-*~03": "only the last is supported", "Mon *-*-15 04:00": "weekdays combined with days", "*:*:0.5": "fractions of a second",
		"*-*-32": "not between 1 and 31", "25:00": "not between 0 and 23", "*:60": "not between", "": "is empty", "soon": "neither weekdays nor a date nor a time", "1:2:3:4": "is not a time",
		"*:0/0": "a period", "*:14/46": "the first repetition at most 59", "Fri..Mon 1:00": "a range goes forward", "Sun..Mon": "a range goes forward", "*-13-01": "not between 1 and 12", "Mon *-*-L": "not between", "Mon *-*-*/2 00:00": "not between 1 and 31", "*-*-* */2:00": "not between 0 and 23", "*:5..2": "not between", "-": "day is missing",
		"Mon..ſun": "cannot parse", "ſun": "cannot parse", // which fold to sun, and went on for ever
	} {
		if got, _, err := importer.Calendar(event, "UTC"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v", event, got, err)
		}
	}
}

func FuzzCalendar(f *testing.F) {
	for _, s := range []string{"daily", "Mon..Fri *-*-1..7,9/2 0/2:0:0 UTC", "*-02~01", "Sun 3:10"} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, text string) {
		r := importer.Systemd([]importer.Unit{
			importer.ReadUnit("a.timer", "[Timer]\nOnCalendar="+text), importer.ReadUnit("a.service", "[Service]\nExecStart=/bin/true "+text),
		}, options)
		for _, j := range r.Jobs {
			valid(t, j.Spec)
		}
	})
}

// timed converts a timer and a service.
func timed(t *testing.T, timer, service string) importer.Job {
	t.Helper()
	r := importer.Systemd([]importer.Unit{importer.ReadUnit("/x/dump.timer", timer), importer.ReadUnit("/x/dump.service", service)}, options)
	if len(r.Jobs) != 1 || len(r.Refusals) > 0 {
		t.Fatalf("%d jobs, refused: %v", len(r.Jobs), r.Refusals)
	}

	return r.Jobs[0]
}

const calls = "[Service]\nExecStart=/bin/dump"

func TestSystemd_TimerAndService(t *testing.T) {
	j := timed(t, `# ours
[Unit]
Description=Dumps, each night
[Timer]
OnCalendar=*-*-* 02:30 Asia/Tokyo
OnCalendar=*-*-* 14:30 Asia/Tokyo
Persistent=true
RandomizedDelaySec=1h 30min
AccuracySec=1us
WakeSystem=yes
[Install]
WantedBy=timers.target
`, `[Unit]
Description=The dump
ConditionACPower=true
OnFailure=mail@%n.service
[Service]
Type=oneshot
User=postgres
WorkingDirectory=/var/lib
Environment=A=1 "B=two words" C=%%
Environment=A=3
ExecStart=/usr/bin/dump --to \
   "/srv/a b" '%p'
TimeoutStartSec=2h
TimeoutStopSec=90
Nice=19
ProtectSystem=full
`)
	s := j.Spec
	want := task.Process{Command: []string{"/usr/bin/dump", "--to", "/srv/a b", "dump"}, User: "postgres", Dir: "/var/lib", Nice: 19,
		Env: map[string]string{"A": "3", "B": "two words", "C": "%", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "USER": "postgres"}}
	full := task.Spec{Action: task.Action{Process: &want}}
	if d := task.Differences(full, task.Spec{Action: s.Action}); len(d) > 0 {
		t.Errorf("the action: %v", d)
	}

	if s.Name != "web-1-dump" || s.Timezone != "Asia/Tokyo" || !slices.Equal(s.Schedule, []string{"30 2 * * *", "30 14 * * *"}) || s.Description != "Dumps, each night" {
		t.Errorf("%+v", s)
	}

	if s.Missed.Policy != task.MissedLatest || s.Missed.Window.Std() < 8000*time.Hour || s.Jitter.String() != "1h30m" || s.Timeout.String() != "2h" || s.KillGrace.String() != "1m30s" || s.Overlap != task.OverlapQueue {
		t.Errorf("%+v", s)
	}

	notes := strings.Join(j.Notes, "\n")

	for _, want := range []string{"settings of the timer that a task does not have: WakeSystem", "settings of the service that a task does not have: ProtectSystem", "conditions that are not checked before a run: ConditionACPower=true",
		"OnFailure=mail@dump.service.service: systemd starts this unit after a run has failed", "settings without effect on a task: AccuracySec"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q is missing in %q", want, notes)
		}
	}
}

func TestSystemd_PeriodsCountAnew(t *testing.T) {
	s := timed(t, "[Timer]\nOnBootSec=15min\nOnUnitActiveSec=1d", calls).Spec
	if !slices.Equal(s.Schedule, []string{"@every 24h"}) || s.Missed.Policy != task.MissedSkip {
		t.Errorf("%v", s.Schedule)
	}

	// In a drop-in, one setting discards all times.
	s = timed(t, "[Timer]\nOnBootSec=1\nOnUnitActiveSec=1h\nOnCalendar=weekly\nPersistent=yes\n[Timer]\nOnActiveSec=\nOnUnitInactiveSec=1d", calls).Spec
	if !slices.Equal(s.Schedule, []string{"@every 24h after completion"}) || s.Missed.Policy != task.MissedSkip {
		t.Errorf("%v %s", s.Schedule, s.Missed.Policy)
	}

	if j := timed(t, "[Timer]\nOnUnitActiveSec=1d", calls); !hasNote(j, "systemd does not start the service before something else has started it once") {
		t.Errorf("%q", j.Notes)
	}
	if j := timed(t, "[Timer]\nOnBootSec=15min\nOnUnitActiveSec=1d", calls); hasNote(j, "something else") {
		t.Errorf("%q", j.Notes)
	}

	if s = timed(t, "[Timer]\nOnUnitInactiveSec=90", calls).Spec; !slices.Equal(s.Schedule, []string{"@every 1m30s after completion"}) {
		t.Errorf("%v", s.Schedule)
	}

	if s = timed(t, "[Timer]\nOnCalendar=daily\nOnCalendar=\nOnCalendar=hourly", calls).Spec; !slices.Equal(s.Schedule, []string{"0 0-23 * * *"}) {
		t.Errorf("an empty setting takes back those before: %v", s.Schedule)
	}
}

// A timer that counts only from a boot runs at boot. What that cannot express is named.
func TestSystemd_RunsAtBoot(t *testing.T) {
	for _, c := range []struct{ timer, note string }{
		{"OnBootSec=0", ""},
		{"OnStartupSec=0", ""},
		{"OnBootSec=15min", "OnBootSec=15min: the run starts as soon as its node has joined the cluster after a boot, without this delay"},
		{"OnBootSec=0\nOnStartupSec=1h", "OnStartupSec=1h: a task has one run for each boot"},
		{"OnBootSec=0\nOnActiveSec=1h", "OnActiveSec=1h is not supported: the task runs only at boot"},
		{"OnBootSec=0\nRandomizedDelaySec=5", "RandomizedDelaySec=5: the run at boot is not delayed"},
		{"OnBootSec=0\nPersistent=yes", "Persistent= has no effect without OnCalendar="},
	} {
		j := timed(t, "[Timer]\n"+c.timer, calls)
		s := j.Spec
		if !s.Schedule.AtBoot() || s.Overlap != task.OverlapAllow || s.Jitter != 0 || j.Place.Line != 2 || s.Validate() != nil {
			t.Errorf("%s: %+v: %v", c.timer, s, s.Validate())
		}
		if !hasNote(j, c.note) && c.note != "" || hasNote(j, "logs in") || hasNote(j, "without this delay") != strings.HasSuffix(c.note, "without this delay") {
			t.Errorf("%s: %q", c.timer, j.Notes)
		}
	}

	if j := timed(t, "[Timer]\nOnBootSec=1\nOnCalendar=daily", calls); !hasNote(j, "OnBootSec=1 is not supported: a task that runs at boot cannot have other times") {
		t.Errorf("%q", j.Notes)
	}

	// What does not count from a boot is not advised as another task.
	for _, timer := range []string{"OnActiveSec=1h\nOnCalendar=daily", "OnUnitActiveSec=1d\nOnActiveSec=1h"} {
		if j := timed(t, "[Timer]\n"+timer, calls); !hasNote(j, "OnActiveSec=1h is not supported: the task runs only at the other times of the timer") || hasNote(j, "create another one") {
			t.Errorf("%s: %q", timer, j.Notes)
		}
	}

	// The service manager of a user starts when the user logs in.
	ofUser := func(timer string) importer.Result {
		units := []importer.Unit{importer.ReadUnit("a.timer", "[Timer]\n"+timer), importer.ReadUnit("a.service", calls)}
		return importer.Systemd(units, importer.Options{User: "ann", Timezone: "UTC"})
	}
	if r := ofUser("OnStartupSec=1"); len(r.Refusals) != 1 {
		t.Errorf("%+v", r)
	}
	if j := onlyJob(t, ofUser("OnStartupSec=1\nOnCalendar=daily"), "a"); !hasNote(j, "OnStartupSec=1 is not supported: the task runs only at the other times of the timer") {
		t.Errorf("%q", j.Notes)
	}
	if j := onlyJob(t, ofUser("OnBootSec=0"), "a"); !j.Spec.Schedule.AtBoot() || !hasNote(j, "OnBootSec=0: systemd waits until the user logs in") {
		t.Errorf("%q", j.Notes)
	}
}

func TestSystemd_CommandsBecomeAction(t *testing.T) {
	for lines, want := range map[string]string{
		"ExecStart=/bin/a b":                                                "[/bin/a b]",
		"ExecStart=@/bin/a name b":                                          "[/bin/a b]",
		`ExecStart=/bin/sh -c 'echo "x"; y'`:                                `[/bin/sh -c echo "x"; y]`,
		"ExecStart=/bin/a $$HOME":                                           "[/bin/a $HOME]",
		"ExecStart=:/bin/a $HOME":                                           "[/bin/a $HOME]",
		`ExecStart=/bin/a\x 'b\.c' \t\q`:                                    `[/bin/a\x b\.c ` + "\t" + `\q]`, // only escapes are replaced
		`ExecStart=/bin/find . -exec ls {} \;`:                              "[/bin/find . -exec ls {} ;]",
		`ExecStart=/bin/a \xc3\xa9`:                                         "refused",
		"ExecStart=-/bin/a":                                                 "{ /bin/a || true; }",
		"ExecStart=/bin/a $OPTS ${ONE}.txt 'a b'":                           "set -f\n" + `/bin/a $OPTS "${ONE}".txt 'a b'`,
		"ExecStart=/bin/a x$y $$ --mail=$TO":                                "[/bin/a x$y $ --mail=$TO]",
		"ExecStart=/bin/a ${A#b} $A/b x":                                    "[/bin/a  x]",
		"Environment=\"A=-x 'b c' d\\\\ e$\"\nExecStart=/bin/a $A":          "[/bin/a -x b c d e$]",
		"Environment=A=-x*\nExecStart=/bin/a $A":                            "set -f\n/bin/a $A",
		"Type=oneshot\nExecStartPre=/bin/p\nExecStart=/bin/a\nExecStart=b;": "/bin/p &&\n/bin/a &&\n'b;'",
		"Type=oneshot\nExecStart=/bin/a ; -/bin/b c":                        "/bin/a &&\n{ /bin/b c || true; }",
		"ExecStart=/bin/a\nExecStart=/bin/b":                                "refused", // as systemd does
		"ExecStart=$A":                                                      "refused",
		"ExecStart=~/bin/a":                                                 "refused",
		"ExecStart=|/bin/a":                                                 "refused",
		"ExecStart=/bin/a +%% 5% %-x":                                       "[/bin/a +% 5% %-x]",
		"ExecStart=/bin/a \\\\\nNice=5":                                     `[/bin/a \]`,
		"ExecCondition=/bin/c\nExecStart=/bin/a":                            "/bin/c || { [ $? -lt 255 ] && exit 0; exit 255; }\n/bin/a",
		"ExecCondition=/bin/c\nExecCondition=-/bin/d\nExecStart=/bin/a":     "/bin/c || { [ $? -lt 255 ] && exit 0; exit 255; }\n{ /bin/d || true; }\n/bin/a",
		"ExecStart=/bin/a ; /bin/b":                                         "refused",
		"ExecStart=/bin/a %Z":                                               "refused",
		"ExecStart=":                                                        "refused",
		"ExecStart='a":                                                      "refused",
		"Type=forking\nExecStart=/bin/a":                                    "refused",
		"DynamicUser=yes\nExecStart=/bin/a":                                 "refused",
	} {
		r := importer.Systemd([]importer.Unit{importer.ReadUnit("a.timer", "[Timer]\nOnCalendar=daily"), importer.ReadUnit("a.service", "[Service]\n"+lines)}, options)
		got := "refused"
		if len(r.Jobs) == 1 {
			p := r.Jobs[0].Spec.Action.Process
			if got = p.Shell; got == "" {
				got = "[" + strings.Join(p.Command, " ") + "]"
			}
		}

		if got != want {
			t.Errorf("%s:\n got  %s %v\n want %s", lines, got, r.Refusals, want)
		}
	}
}

// The output of systemctl cat for a timer and its service, each with a drop-in.
func TestReadUnits_SplitsTheOutputOfCat(t *testing.T) {
	const text = "# /home/ann/.config/systemd/user/x.timer\n[Timer]\nOnCalendar=daily\n\n# /home/ann/.config/systemd/user/x.timer.d/o.conf\n[Timer]\nOnCalendar=\nOnCalendar=hourly\n\n" +
		"# /home/ann/.config/systemd/user/x.service\n[Service]\nExecStart=/bin/a\n\n# /home/ann/.config/systemd/user/x.service.d/o.conf\n[Service]\nNice=5\n"

	j := onlyJob(t, importer.Systemd(importer.ReadUnits("stdin", text), importer.Options{Timezone: "UTC"}), "cat")
	if p := j.Spec.Action.Process; j.Spec.Name != "ann-x" || p.User != "ann" || p.Nice != 5 || !slices.Equal(j.Spec.Schedule, []string{"0 * * * *"}) {
		t.Errorf("%+v %+v", j.Spec, p)
	}

	for _, file := range []string{"x.timer", "y.timer"} {
		if units := importer.ReadUnits(file, "# /etc/systemd/system/x.timer\n[Timer]\n"); len(units) != 1 || units[0].File != file {
			t.Errorf("%s: %+v", file, units)
		}
	}
	if units := importer.ReadUnits("stdin", "[Timer]\n# /etc/systemd/system/x.timer\n"); len(units) != 1 || units[0].File != "stdin" {
		t.Errorf("%+v", units)
	}
}

func TestSystemd_RefusesWithItsPlace(t *testing.T) {
	for timer, want := range map[string]string{
		"[Timer]\nOnActiveSec=5":                            "a.timer:2: OnActiveSec is not supported",
		"[Timer]\nOnBootSec=soon":                           "a.timer:2: OnBootSec=soon: is not a period",
		"[Timer]\n\nOnCalendar=2030-*-01":                   "a.timer:3: OnCalendar=2030-*-01: the year",
		"[Timer]":                                           "a.timer: the timer has no schedule",
		"[Timer]\nOnCalendar=daily\nUnit=b.service":         "starts b.service, which is not among the given units",
		"[Timer]\nOnCalendar=daily\nUnit=a@.service":        "starts a@.service, which is a template: name one of its instances",
		"[Timer]\nOnCalendar=daily UTC\nOnCalendar=weekly":  "several time zones",
		"[Timer]\nOnUnitActiveSec=soon":                     "is not a period",
		"[Timer]\nOnCalendar=daily\nRandomizedDelaySec=1 x": "is not a unit of time",
	} {
		r := importer.Systemd([]importer.Unit{importer.ReadUnit("a.timer", timer), importer.ReadUnit("a.service", calls)}, options)
		if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Place.String()+": "+r.Refusals[0].Why, want) {
			t.Errorf("%q: %v", timer, r.Refusals)
		}
	}
}

// What a unit does not contain is named, or systemd refuses it, too.
func TestSystemd_VariablesOfCommands(t *testing.T) {
	for lines, want := range map[string]string{
		"ExecStart=/bin/a $REPOS ${HOME} x$NO":                                "ExecStart uses variables that the unit does not set: REPOS; if the service manager sets them, add them to env",
		"Environment=A=1\nExecStart=/bin/a ${A} ${B}":                         "does not set: B;",
		"Environment=SHELL=/x\nExecStart=/bin/a ${HOME} $USER ${SHELL} $PATH": "ExecStart uses variables that systemd does not set without User=: HOME, USER; the task has those of root",
		"ExecStart=/bin/sh -c 'for f in *; do x ${f%%.z}; done'":              `ExecStart: systemd replaces "${f%.z}" by nothing, also within quotes: write $${f%.z} for the shell`,
		"ExecStart=/bin/a $HOME/b":                                            `ExecStart: systemd omits the argument "$HOME/b", because no variable has such a name: write ${NAME} within a word`,
		"ExecStart=@/bin/a name":                                              `ExecStart=@…: the program is not started under the name "name"`,
	} {
		if j := fromService(t, "ExecStart=\n"+lines); !hasNote(j, want) {
			t.Errorf("%q: %q", lines, j.Notes)
		}
	}

	for _, lines := range []string{"User=ann\nExecStart=/bin/a ${USER} $$X", "EnvironmentFile=/x\nExecStart=/bin/a ${X}", "ExecStart=:/bin/a $X"} {
		if j := fromService(t, "ExecStart=\n"+lines); hasNote(j, "variables") {
			t.Errorf("%q: %q", lines, j.Notes)
		}
	}
}

// systemd sets USER where Carillon does not.
func TestSystemd_SetsUser(t *testing.T) {
	for lines, want := range map[string]string{"User=ann": `"ann"`, "User=ann\nEnvironment=USER=x": `"x"`, "User=1000": "", "": ""} {
		if got := fieldOf(t, fromService(t, lines).Spec, "action.process.env.USER"); got != want {
			t.Errorf("%q: %s", lines, got)
		}
	}
}

func TestSystemd_DescriptionsHaveSpecifiers(t *testing.T) {
	if s := timed(t, "[Unit]\nDescription=%N of %Z\n[Timer]\nOnCalendar=daily", calls).Spec; s.Description != "%N of %Z" {
		t.Errorf("%q", s.Description)
	}
	if s := timed(t, "[Unit]\nDescription=%N, 100%\n[Timer]\nOnCalendar=daily", calls).Spec; s.Description != "dump, 100%" {
		t.Errorf("%q", s.Description)
	}
}
