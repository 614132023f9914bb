package importer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

// onlyJob returns the only job of a result.
func onlyJob(t *testing.T, r importer.Result, input string) importer.Job {
	t.Helper()
	if len(r.Jobs) != 1 || len(r.Refusals) > 0 {
		t.Fatalf("%s: %d jobs, refused: %v", input, len(r.Jobs), r.Refusals)
	}

	return r.Jobs[0]
}

// unitsWith returns a timer and its service with more settings, which begin with the section: "Service:Nice=1".
func unitsWith(settings string) []importer.Unit {
	section, lines, _ := strings.Cut(settings, ":")
	timer, service := "[Timer]\nOnCalendar=daily\n", "[Service]\nExecStart=/bin/a\n"
	switch section {
	case "Timer":
		timer += lines
	case "Service":
		service += lines
	case "Unit":
		service += "\n[Unit]\n" + lines
	}

	return []importer.Unit{importer.ReadUnit("/etc/systemd/system/a.timer", timer), importer.ReadUnit("/etc/systemd/system/a.service", service)}
}

// fromUnits converts the only timer among units, given as a path and its text in turn.
func fromUnits(t *testing.T, o importer.Options, files ...string) importer.Job {
	t.Helper()
	r := importer.Systemd(readUnits(files), o)

	return onlyJob(t, r, files[0])
}

func readUnits(files []string) (units []importer.Unit) {
	for i := 0; i < len(files); i += 2 {
		units = append(units, importer.ReadUnit(files[i], files[i+1]))
	}
	return units
}

// fromService converts a service that runs each day.
func fromService(t *testing.T, lines string) importer.Job {
	t.Helper()
	return onlyJob(t, importer.Systemd(unitsWith("Service:"+lines), importer.Options{}), lines)
}

// hasNote reports whether a job has a note with a text.
func hasNote(j importer.Job, text string) bool {
	return slices.ContainsFunc(j.Notes, func(n string) bool { return strings.Contains(n, text) })
}

// A backup service of a distribution: all of its settings that a task has are converted, and only the others are listed.
func TestSystemd_BackupService(t *testing.T) {
	j := fromUnits(t, importer.Options{Timezone: "UTC"}, "/etc/systemd/system/borg.timer", "[Timer]\nOnCalendar=daily\nPersistent=true\nRandomizedDelaySec=10m\n",
		"/etc/systemd/system/borg.service", `[Unit]
Description=backup
Wants=network-online.target
After=network-online.target
ConditionACPower=true
OnFailure=mail@%n
[Service]
Type=oneshot
RuntimeDirectory=borg
StateDirectory=borg
User=ann
Group=backup
UMask=0077
Nice=19
CPUSchedulingPolicy=batch
IOSchedulingClass=best-effort
IOSchedulingPriority=7
IOWeight=100
NoNewPrivileges=yes
PrivateTmp=yes
LimitNOFILE=65536
LimitCORE=0
MemoryMax=2G
CPUQuota=50%
TasksMax=64
KillSignal=SIGINT
SuccessExitStatus=75
Restart=on-failure
RestartSec=5min
LogRateLimitIntervalSec=0
Environment=OPTS=-v
EnvironmentFile=/etc/borg/env
EnvironmentFile=-/etc/default/borg
ExecStart=/usr/bin/borg --list $OPTS
`)

	zero := task.Size(0)
	want := task.Process{
		Shell: "[ -n \"${OPTS+set}\" ] || export OPTS=-v\nset -f\n/usr/bin/borg --list $OPTS", User: "ann", Group: "backup", Dir: "/", Umask: "0077", Nice: 19, IONice: "best-effort/7",
		NoNewPrivs: true, PrivateTmp: true, Env: map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "USER": "ann"},
		EnvFrom: []task.EnvFrom{{File: "/etc/borg/env"}, {File: "/etc/default/borg", Optional: true}},
		Limits:  task.Limits{OpenFiles: 65536, Core: &zero, Memory: 2 << 30, CPU: 0.5, PIDs: 64},
	}
	if d := task.Differences(task.Spec{Action: task.Action{Process: &want}}, task.Spec{Action: j.Spec.Action}); len(d) > 0 {
		t.Errorf("the action: %v", d)
	}

	retry := task.Retry{Attempts: 100, Backoff: 300e9, Factor: 1, MaxBackoff: 300e9, On: []task.State{task.Failed, task.TimedOut}}
	if s := j.Spec; fmt.Sprint(s.Retry) != fmt.Sprint(retry) || s.KillSignal != "SIGINT" || !slices.Equal(s.Success.ExitCodes, []int{0, 75}) || s.KillGrace != 90e9 {
		t.Errorf("%+v %s %v %s", s.Retry, s.KillSignal, s.Success, s.KillGrace)
	}

	notes := []string{
		"conditions that are not checked before a run: ConditionACPower=true",
		"other units are not started, stopped or awaited: Wants=network-online.target",
		"OnFailure=mail@borg.service: systemd starts this unit after a run has failed, and Carillon does not: use a task with after: {task: borg, when: failed}; to only notify somebody of failures, set alerts.notify",
		"directories that systemd creates, and Carillon does not: RuntimeDirectory=borg, StateDirectory=borg",
		"settings of the service that a task does not have: CPUSchedulingPolicy, IOWeight",
		"settings without effect on a task: After, LogRateLimitIntervalSec",
		"env overrides the files of env_from, also if they set PATH, USER",
		"systemd interprets quotes in the value of $OPTS, and the task splits it at white space only",
		"EnvironmentFile=: the file is read as ann, not as root",
		"Restart=on-failure: a run has at most 100 attempts; systemd has no limit here",
	}
	slices.Sort(notes)
	slices.Sort(j.Notes)
	if !slices.Equal(j.Notes, notes) {
		t.Errorf("notes:\n%s", strings.Join(j.Notes, "\n"))
	}
}

// A unit of a user runs as that user in their home. As root it would have more rights than it ever had.
func TestSystemd_UnitsOfAUser(t *testing.T) {
	const timer, calls = "[Timer]\nOnCalendar=daily\n", "[Service]\nExecStart=%h/bin/x %u\n"

	for _, dir := range []string{"/home/ann/.config/systemd/user/", "/home/ann/.local/share/systemd/user/", "hosts/web-1/home/ann/.config/systemd/user/"} {
		j := fromUnits(t, importer.Options{}, dir+"x.timer", timer, dir+"x.service", calls)
		if p := j.Spec.Action.Process; p.User != "ann" || p.Dir != "" || !slices.Equal(p.Command, []string{"/home/ann/bin/x", "ann"}) || j.Spec.Name != "ann-x" {
			t.Errorf("%s: %s %+v", dir, j.Spec.Name, p)
		}
	}

	if p := fromUnits(t, importer.Options{}, "/root/.config/systemd/user/x.timer", timer, "/root/.config/systemd/user/x.service", calls).Spec.Action.Process; p.User != "root" || p.Command[0] != "/root/bin/x" {
		t.Errorf("%+v", p)
	}

	// The output of systemctl --user cat, wherever it is saved.
	if p := fromUnits(t, importer.Options{}, "x.timer", "# /home/ann/.config/systemd/user/x.timer\n"+timer, "x.service", "# /home/ann/.config/systemd/user/x.service\n"+calls).Spec.Action.Process; p.User != "ann" {
		t.Errorf("%+v", p)
	}

	for _, dir := range []string{"/etc/systemd/user/", "/usr/lib/systemd/user/", "/usr/share/systemd/user/", "/run/user/1000/systemd/transient/", "/srv/homes/ann/.config/systemd/user/"} {
		files := []string{dir + "x.timer", timer, dir + "x.service", calls}
		if r := importer.Systemd(readUnits(files), importer.Options{}); len(r.Jobs) > 0 || len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, "use --user NAME") {
			t.Errorf("%s: %+v", dir, r)
		}

		o := importer.Options{User: "bob", Home: func(string) string { return "/srv/bob" }}
		if p := fromUnits(t, o, files...).Spec.Action.Process; p.User != "bob" || p.Command[0] != "/srv/bob/bin/x" {
			t.Errorf("%s: %+v", dir, p)
		}
	}

	r := importer.Systemd(readUnits([]string{"x.timer", timer, "x.service", calls}), importer.Options{User: "bob"})
	if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, "does not know the home directory of bob") {
		t.Errorf("%+v", r)
	}

	// A service of the system does not belong to a timer of a user.
	r = importer.Systemd(readUnits([]string{"/home/ann/.config/systemd/user/x.timer", timer, "/etc/systemd/system/x.service", calls}), importer.Options{})
	if len(r.Jobs) > 0 {
		t.Errorf("%+v", r.Jobs)
	}

	// Nothing says whose unit this is.
	if j := fromUnits(t, importer.Options{}, "mail/x.timer", timer, "mail/x.service", calls); !hasNote(j, "if it is the unit of a user, use --user NAME") || j.Spec.Action.Process.User != "root" {
		t.Errorf("%q", j.Notes)
	}
	if j := fromUnits(t, importer.Options{}, "/usr/lib/systemd/system/x.timer", timer, "/usr/lib/systemd/system/x.service", calls); hasNote(j, "--user") {
		t.Errorf("%q", j.Notes)
	}
}

func TestSystemd_Specifiers(t *testing.T) {
	args := func(unit, words string) string {
		r := importer.Systemd(readUnits([]string{"/etc/systemd/system/x.timer", "[Timer]\nOnCalendar=daily\nUnit=" + unit + "\n",
			"/etc/systemd/system/a-b@.service", "[Service]\nExecStart=/x " + words, "/etc/systemd/system/a-b.service", "[Service]\nExecStart=/x " + words}), importer.Options{})
		if len(r.Jobs) != 1 {
			return r.Refusals[0].Why
		}
		return strings.Join(r.Jobs[0].Spec.Action.Process.Command[1:], " ")
	}

	if got := args(`a-b@c-d\x2de.service`, `%n %N %p %P %i %I %j %J %f %h %u %U %t %S %%`); got != `a-b@c-d\x2de.service a-b@c-d\x2de a-b a/b c-d\x2de c/d-e b b /c/d-e /root root 0 /run /var/lib %` {
		t.Errorf("%s", got)
	}
	if got := args("a-b@%N.service", "%i"); got != "x" {
		t.Errorf("%s", got)
	}
	if got := args("a-b.service", "%f"); got != "/a/b" {
		t.Errorf("%s", got)
	}
	host := importer.Options{Host: "web-1", Hostname: "web-1.example.org"}
	if p := fromUnits(t, host, "x.timer", "[Timer]\nOnCalendar=daily\n", "x.service", "[Service]\nExecStart=/x %H %l").Spec.Action.Process; !slices.Equal(p.Command, []string{"/x", "web-1.example.org", "web-1"}) {
		t.Errorf("%q", p.Command)
	}

	for _, c := range "HmbvslaoBMAq" {
		if got := args("a-b.service", "%"+string(c)); !strings.Contains(got, "its value depends on the host") {
			t.Errorf("%%%c: %s", c, got)
		}
	}
}

// A timer that elapses while its service is active starts it once more when it has ended.
func TestSystemd_ElapsesOnceWhileActive(t *testing.T) {
	s := timed(t, "[Timer]\nOnCalendar=*:*", calls).Spec
	if s.Overlap != task.OverlapQueue || s.Queue != (task.QueuePolicy{Limit: 1, Drop: task.DropOldest}) {
		t.Errorf("%s %+v", s.Overlap, s.Queue)
	}
	if s := timed(t, "[Timer]\nOnCalendar=*:*\nDeferReactivation=yes", calls).Spec; s.Overlap != task.OverlapSkip {
		t.Errorf("%s", s.Overlap)
	}
}

func TestSystemd_SingleTimes(t *testing.T) {
	for event, want := range map[string]string{
		"@1900000000":                    "@at 2030-03-17T17:46:40Z",
		"2030-12-24 18:00":               "@at 2030-12-24T17:00:00Z", // in the zone of the host, Berlin
		"2030-12-24":                     "@at 2030-12-23T23:00:00Z",
		"Tue 30-12-24 18:00:05 UTC":      "@at 2030-12-24T18:00:05Z",
		"2030-12-24 18:00 Asia/Tokyo":    "@at 2030-12-24T09:00:00Z",
		"2020-01-01 00:00 Europe/London": "@at 2020-01-01T00:00:00Z", // has passed
	} {
		s := timed(t, "[Timer]\nOnCalendar="+event, calls).Spec
		if !slices.Equal(s.Schedule, []string{want}) || s.DST != task.Defaults().DST {
			t.Errorf("%s: %v %v", event, s.Schedule, s.DST)
		}
	}

	if s := timed(t, "[Timer]\nOnCalendar=2030-12-24 18:00 UTC\nOnCalendar=daily Asia/Tokyo", calls).Spec; s.Timezone != "Asia/Tokyo" || len(s.Schedule) != 2 {
		t.Errorf("%v %s", s.Schedule, s.Timezone)
	}
}

// Each setting has the value that systemd gives it.
func TestSystemd_SettingsOfServices(t *testing.T) {
	for _, c := range []struct{ lines, field, want string }{
		{"", "kill_grace", `"1m30s"`}, // the default of systemd
		{"TimeoutStopSec=infinity", "kill_grace", `"1h"`},
		{"TimeoutSec=20\nType=oneshot", "kill_grace", `"20s"`},
		{"TimeoutSec=20\nType=oneshot", "timeout", `"20s"`},
		{"TimeoutSec=20\nTimeoutStartSec=9\nType=oneshot", "timeout", `"9s"`},
		{"TimeoutStartSec=20\nType=oneshot\nExecStartPre=/b ; /c", "timeout", `"1m"`}, // of each command
		{"TimeoutStartSec=200d\nType=oneshot\nExecStartPre=/b", "timeout", `"` + task.MaxTimeout.String() + `"`},
		{"TimeoutStartSec=infinity\nType=oneshot\nExecStartPre=/b", "timeout", ``},
		{"TimeoutSec=20", "timeout", ``}, // the start of such a service is not its run
		{"TimeoutStartSec=infinity\nType=oneshot", "timeout", ``},
		{"RuntimeMaxSec=20", "timeout", `"20s"`},
		{"RuntimeMaxSec=20\nType=oneshot", "timeout", ``},
		{"MemoryLimit=512M", "action.process.limits.memory", `"512Mi"`},
		{"MemoryMax=1.5G", "action.process.limits.memory", `"1536Mi"`},
		{"MemoryMax=infinity", "action.process.limits.memory", ``},
		{"CPUQuota=250%", "action.process.limits.cpu", `2.5`},
		{"LimitNOFILE=1024:524288", "action.process.limits.open_files", `1024`},
		{"LimitCPU=1min", "action.process.limits.cpu_time", `"1m"`},
		{"IOSchedulingClass=3", "action.process.ionice", `"idle"`},
		{"IOSchedulingClass=idle\nIOSchedulingPriority=7", "action.process.ionice", `"idle"`},
		{"IOSchedulingPriority=2", "action.process.ionice", `"best-effort/2"`},
		{"KillSignal=2", "kill_signal", `"SIGINT"`},
		{"KillSignal=HUP", "kill_signal", `"SIGHUP"`},
		{"SuccessExitStatus=SIGKILL TEMPFAIL 250", "success.exit_codes", `[0,75,250]`},
		{"WorkingDirectory=~\nUser=ann", "action.process.dir", ``},
		{"WorkingDirectory=-/srv", "action.process.dir", `"/srv"`},
		{"StandardInput=data\nStandardInputText=a\\tb %%\nStandardInputData=Y2Q=", "action.process.stdin", `{"text":"a\tb %\ncd"}`},
		{"StandardInputText=a\nStandardInputText=\nStandardInputText=b", "action.process.stdin", `{"text":"b\n"}`},
		{"User=ann\nSystemCallFilter=@system-service", "action.process.no_new_privs", `true`}, // without the right to filter system calls
		{"SystemCallFilter=@system-service", "action.process.no_new_privs", ``},
		{"User=ann\nProtectClock=no", "action.process.no_new_privs", ``},
		{"DynamicUser=yes\nUser=ann", "action.process.private_tmp", `true`},
		{"Restart=on-failure", "retry.attempts", `5`},
		{"Restart=on-failure", "retry.backoff", `"100ms"`},
		{"Restart=on-failure\nRestartSec=1s\nRestartSteps=2\nRestartMaxDelaySec=9s", "retry.factor", `3`},
		{"Restart=on-failure\nRestartSec=1s\nRestartSteps=2\nRestartMaxDelaySec=9s", "retry.max_backoff", `"9s"`},
		{"Restart=always", "retry.on", `["failed","timed_out"]`},
		{"Restart=always\nStartLimitBurst=3", "retry.attempts", `3`}, // its former section
		{"Restart=always\nRestartSec=1\nStartLimitInterval=4", "retry.attempts", `100`},
		{"Environment=A=1 # comment", "action.process.env.A", `"1"`},
		{"RestartForceExitStatus=3 4", "retry.exit_codes", `[3,4]`},
		{"Environment=A=1 B=2\nUnsetEnvironment=A", "action.process.env.A", ``},
		{"Environment=HOME=/x\nEnvironmentFile=/a", "action.process.env.HOME", `"/x"`}, // a shell cannot know whether the file has set it
	} {
		s := fromService(t, c.lines).Spec
		if got := fieldOf(t, s, c.field); got != c.want && !(c.want == "" && got == "null") {
			t.Errorf("%q: %s is %s, not %s", c.lines, c.field, got, c.want)
		}
	}
}

// fieldOf returns a field of a task as JSON.
func fieldOf(t *testing.T, s task.Spec, path string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}

	for name := range strings.SplitSeq(path, ".") {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(b, &object); err != nil {
			return ""
		}
		b = object[name]
	}

	return string(b)
}

func TestSystemd_NotesOfServices(t *testing.T) {
	for lines, want := range map[string]string{
		"RemainAfterExit=yes":                            "systemd starts the service once, and not again",
		"KillMode=process":                               "KillMode=process: processes that are left when a run ends are killed",
		"MemoryMax=50%":                                  "MemoryMax=50% depends on the memory of the host",
		"TasksMax=10%":                                   "TasksMax=10% depends on the host",
		"MemorySwapMax=0":                                "MemorySwapMax=0 requires MemoryMax=",
		"LimitNOFILE=infinity":                           "LimitNOFILE=infinity: the task has the limit of the node's daemon",
		"StandardOutput=append:/var/log/x.log":           "StandardOutput=append:/var/log/x.log: the output is kept by Carillon instead",
		"User=ann\nSupplementaryGroups=adm":              "groups replaces the groups that the node has for ann",
		"Restart=always":                                 "systemd also starts the service again after a success",
		"Restart=on-failure":                             "at most 5 attempts; systemd stops after 5 starts within 10s",
		"Restart=on-failure\nRestartPreventExitStatus=4": "set retry.exit_codes",
		"SuccessExitStatus=SIGTERM":                      "SuccessExitStatus=SIGTERM: a process that a signal ends has failed",
		"SuccessExitStatus=9\nExecStartPre=/a":           "systemd continues with the next one",
		"ExecStopPost=/bin/b":                            "ExecStopPost= is not run",
		"KillSignal=SIGRTMIN+3":                          "KillSignal=SIGRTMIN+3 is not one of the signals",
		"WorkingDirectory=-/srv":                         "if the directory is missing, the run fails",
		"TimeoutStopSec=2h":                              "a process has at most 1h to end",
		"Environment=A=1 # comment":                      `Environment=: systemd ignores "#", because it is not an assignment`,
		"LoadCredential=a:/b":                            "settings of the service that a task does not have: LoadCredential",
		"CapabilityBoundingSet=":                         "settings of the service that a task does not have: CapabilityBoundingSet",
		"ExecStartPost=/bin/b":                           "ExecStartPost= runs when ExecStart= has ended; systemd runs it as soon as",
		"SyslogIdentifier=x\nStandardOutput=journal\nTimeoutStartSec=5": "settings without effect on a task: StandardOutput, SyslogIdentifier, TimeoutStartSec",
		"EnvironmentFile=/e\nExecStartPre=/b":                           "the task reads the file once, before ExecStartPre=",
		"Type=oneshot\nTimeoutStartSec=5\nExecStartPre=/b":              "TimeoutStartSec=5: systemd limits each command; the timeout of the task is that of its 2 commands together",
		"TimeoutStartSec=5\nExecStartPre=/b":                            "TimeoutStartSec=5: systemd limits the commands before and after ExecStart= with it; the task does not",
		"RuntimeMaxSec=5\nExecStartPre=/b":                              "RuntimeMaxSec=5: systemd limits only ExecStart= with it",
		"StandardInput=file:/i\nExecStartPre=/b":                        "StandardInput=: the commands of the task share one input",
		"Restart=on-failure\nStartLimitAction=reboot":                   "settings of the service that a task does not have: StartLimitAction=reboot",
		"StartLimitInterval=1h\nStartLimitBurst=2":                      "StartLimitBurst=2, StartLimitInterval=1h: systemd does not start the service more often",
		"StartLimitInterval=0\nStartLimitBurst=2":                       "settings without effect on a task: StartLimitBurst, StartLimitInterval",
	} {
		if j := fromService(t, lines); !hasNote(j, want) {
			t.Errorf("%q: %q", lines, j.Notes)
		}
	}

	for lines, not := range map[string]string{
		"EnvironmentFile=/e":                             "reads the file once",
		"Type=oneshot\nTimeoutStartSec=5":                "limits each command",
		"StandardInput=file:/i":                          "share one input",
		"Restart=on-failure\nStartLimitAction=none":      "StartLimitAction",
		"Restart=on-failure\nStartLimitBurst=2":          "more often",
		"[Unit]\nStartLimitIntervalSec=0":                "more often",
		"Restart=no\nStartLimitInterval=0":               "more often",
		"User=ann\nExecStart=\nExecStart=/bin/a ${HOME}": "without User=: HOME",
	} {
		if j := fromService(t, lines); hasNote(j, not) {
			t.Errorf("%q: %q", lines, j.Notes)
		}
	}
}

// systemd skips the ticks that pass during a random delay.
func TestSystemd_NotesLongDelays(t *testing.T) {
	for lines, want := range map[string]bool{
		"RandomizedDelaySec=25h":                        true,
		"OnCalendar=hourly\nRandomizedDelaySec=2h":      true,
		"OnCalendar=23:55\nRandomizedDelaySec=10min":    true,
		"RandomizedDelaySec=24h":                        false,
		"OnCalendar=hourly\nRandomizedDelaySec=1h":      false,
		"OnUnitActiveSec=5min\nRandomizedDelaySec=6min": true,
	} {
		j := onlyJob(t, importer.Systemd(unitsWith("Timer:"+lines), importer.Options{}), lines)
		if hasNote(j, "is longer than the time between ticks") != want {
			t.Errorf("%q: %q", lines, j.Notes)
		}
	}
}

// systemd runs a service once at a time, whichever timers start it.
func TestSystemd_NotesSharedServices(t *testing.T) {
	files := []string{"/u/a.timer", "[Timer]\nOnCalendar=daily\nUnit=c@1.service", "/u/b.timer", "[Timer]\nOnCalendar=weekly\nUnit=c@1.service",
		"/u/c.timer", "[Timer]\nOnCalendar=weekly\nUnit=c@2.service", "/u/c@.service", calls}

	const want = "/u/a.timer and /u/b.timer start c@1.service, which systemd never runs twice at once"
	for _, j := range importer.Systemd(readUnits(files), importer.Options{}).Jobs {
		if hasNote(j, want) == (j.Spec.Name == "c") {
			t.Errorf("%s: %q", j.Spec.Name, j.Notes)
		}
	}
}

// A note names all values of a setting that has several.
func TestSystemd_NotesOfUnitSections(t *testing.T) {
	j := onlyJob(t, importer.Systemd(unitsWith("Unit:ConditionPathExists=/a\nConditionPathExists=/b%%\nWants=c.service\nWants=d.service\nOnFailure=e.service\nOnFailure=f@%n\nStartLimitAction=reboot\nStartLimitBurst=2\nStartLimitIntervalSec=1h"), importer.Options{}), "units")
	for _, want := range []string{
		"settings of the unit that a task does not have: StartLimitAction=reboot",
		"StartLimitBurst=2, StartLimitIntervalSec=1h: systemd does not start the service more often, and the task runs at each tick",
		"conditions that are not checked before a run: ConditionPathExists=/a, ConditionPathExists=/b%",
		"other units are not started, stopped or awaited: Wants=c.service, Wants=d.service",
		"OnFailure=e.service, OnFailure=f@a.service: systemd starts this unit after a run has failed",
	} {
		if !hasNote(j, want) {
			t.Errorf("%q: %q", want, j.Notes)
		}
	}
}

func TestSystemd_RefusesServices(t *testing.T) {
	for lines, want := range map[string]string{
		"RootDirectory=/srv/jail":                 "RootDirectory=/srv/jail is not supported",
		"Type=oneshot\nRestart=always":            "Restart=always is not possible with Type=oneshot",
		"Type=oneshot\nRestart=on-success":        "Restart=on-success is not possible with Type=oneshot",
		"Type=oneshot # once":                     "Type=oneshot # once: systemd has no comments at the end of a line",
		"StandardInput=tty":                       "a task has no terminal",
		"StandardInputData=****":                  "is not base64",
		"StandardInputData=/w==":                  "is not text",
		"EnvironmentFile=/etc/x/*.conf":           "a pattern is not supported",
		"MemoryMax=lots":                          "MemoryMax=lots: is not a size",
		"CPUQuota=2":                              "CPUQuota=2: is not a percentage",
		"Nice=high":                               "Nice=high: is not a number",
		"UMask=0888":                              "is not a umask in octal",
		"PrivateTmp=yes\nWorkingDirectory=/tmp/x": "with private_tmp",
		"Restart=on-failure\nRestartSec=soon":     "RestartSec=soon",
	} {
		r := importer.Systemd(unitsWith("Service:"+lines), importer.Options{})
		if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, want) {
			t.Errorf("%q: %v %d", lines, r.Refusals, len(r.Jobs))
		}
	}
}
