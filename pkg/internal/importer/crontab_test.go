package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

var (
	ofSystem = importer.Form{System: true}
	ofAnn    = importer.Form{User: "ann"}
	options  = importer.Options{Timezone: "Europe/Berlin", Node: "web-1", Prefix: "web-1"}
)

// one imports a crontab that has one job.
func one(t *testing.T, text string, form importer.Form) importer.Job {
	t.Helper()
	r := importer.Crontab("/etc/cron.d/stats", text+"\n", form, options)
	if len(r.Jobs) != 1 || len(r.Refusals) > 0 {
		t.Fatalf("%q: %d jobs, refused: %v", text, len(r.Jobs), r.Refusals)
	}

	return r.Jobs[0]
}

// Verifies: G45
func TestCrontab_MakesTasksThatDoWhatCronDoes(t *testing.T) {
	j := one(t, "PATH=/opt/bin:/bin\n\n# Counts visitors.\n# Ask ann.\n17 */2 * * mon-fri  www-data\t/usr/lib/stats/count --all \n", ofSystem)
	want := task.Defaults()
	want.Name, want.Description = "web-1-stats-count-"+j.Spec.Name[len(j.Spec.Name)-4:], "Counts visitors.\nAsk ann."
	want.Schedule, want.Timezone = task.Schedules{"17 */2 * * mon-fri"}, "Europe/Berlin"
	want.Labels = map[string]string{"imported": "crontab", "imported-from": "stats", "imported-node": "web-1"}
	want.Action.Process = &task.Process{Shell: "/usr/lib/stats/count --all", User: "www-data", Env: map[string]string{"PATH": "/opt/bin:/bin"}}
	want.Overlap, want.Missed.Policy = task.OverlapAllow, task.MissedSkip
	want.Target.Selector = "node = web-1"
	if d := task.Differences(want, j.Spec); len(d) > 0 || j.Line != 5 {
		t.Errorf("line %d, differs: %v", j.Line, d)
	}
}

// Settings apply to the lines below them, and are parsed as cron parses them.
func TestCrontab_Settings(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`A=b`, `A=b`}, {`  A = b c  `, `A=b c`}, {`A="b c"`, `A=b c`}, {`A='b "c"'`, `A=b "c"`}, {`"A"=b`, `A=b`}, {`A=`, `A=`}, {`A=""`, `A=`},
		{`A=$HOME/x`, `A=$HOME/x`}, {`A=b=c`, `A=b=c`}, {"A=b\nA=c", `A=c`}, {`A=b # c`, `A=b # c`},
		{`PATH=/usr/bin:/bin`, ``}, {`SHELL=/bin/sh`, ``}, {`LOGNAME=x`, ``}, {`MAILTO=ann`, ``}, {`MAILFROM=ann`, ``}, {`TZ=Asia/Tokyo`, `TZ=Asia/Tokyo`},
	} {
		p := one(t, c.text+"\n* * * * * x\nA=later\n", ofAnn).Spec.Action.Process
		got := []string{}
		for k, v := range p.Env {
			got = append(got, k+"="+v)
		}

		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q", c.text, got)
		}
	}

	p := one(t, "SHELL=/bin/bash\nHOME=/srv/app\n* * * * * x", ofAnn).Spec.Action.Process
	if !slices.Equal(p.Command, []string{"/bin/bash", "-c", "x"}) || p.Env["SHELL"] != "/bin/bash" || p.Dir != "/srv/app" || p.Env["HOME"] != "/srv/app" {
		t.Errorf("%+v", p)
	}

	s := one(t, "CRON_TZ=Asia/Tokyo\nRANDOM_DELAY=3\n* * * * * x", ofAnn).Spec
	if s.Timezone != "Asia/Tokyo" || s.Jitter.String() != "3m" {
		t.Errorf("%s, %s", s.Timezone, s.Jitter)
	}
}

// The text after % is the standard input. It needs no shell beside that of the command.
func TestCrontab_PercentSigns(t *testing.T) {
	for _, c := range []struct{ command, want, input string }{
		{`date +\%F`, "date +%F", ""},
		{`a \\% b`, `a \\`, " b\n"},
		{`cat%one%two`, "cat", "one\ntwo\n"},
		{`cat%one\%two%`, "cat", "one%two\n"},
		{`echo 'a%' ; } ; echo b #`, "echo 'a", "' ; } ; echo b #\n"}, // a syntax error to cron, too
		{`cat%`, "cat", ""},
		{`a\b\`, `a\b\`, ""},
	} {
		for shell, form := range map[string]importer.Form{"": ofAnn, "SHELL=/usr/bin/fish\n": ofAnn} {
			p := one(t, shell+"* * * * * "+c.command, form).Spec.Action.Process
			got, input := p.Shell, ""
			if shell != "" {
				got = p.Command[2]
			}
			if p.Stdin != nil {
				input = p.Stdin.Text
			}

			if got != c.want || input != c.input {
				t.Errorf("%s%s:\n got  %q < %q\n want %q < %q", shell, c.command, got, input, c.want, c.input)
			}
		}
	}
}

func TestCrontab_Schedules(t *testing.T) {
	for line, want := range map[string]string{
		"@daily": "@daily", "@reboot": "@reboot", "@midnight": "@midnight", "@every_minute": "* * * * *", "09,39 * * * *": "09,39 * * * *", "-*/5 1-3 * * 7": "*/5 1-3 * * 7",
		"0~30 ~ * * *": "H(0-30) H(0-23) * * *", "0 0 1~28 ~ *": "0 0 H(1-28) H(1-12) *", "5,10~19/3 * * * *": "5,H(10-19)/3 * * * *", "0 0 1 jan,MAR Sun-Tue": "0 0 1 jan,MAR Sun-Tue",
	} {
		if got := one(t, line+"\tx", ofAnn).Spec.Schedule; !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// A line with @reboot is a task of its own, also if another line has the same command, and cron does not delay it.
func TestCrontab_Reboot(t *testing.T) {
	r := importer.Crontab("f", "RANDOM_DELAY=30\n@daily x\n@reboot x\n@hourly x\n", ofAnn, options)
	if len(r.Jobs) != 2 || len(r.Refusals) > 0 {
		t.Fatalf("%v, refused: %v", r.Jobs, r.Refusals)
	}

	s := r.Jobs[1].Spec
	if !s.Schedule.AtBoot() || s.Jitter != 0 || s.Overlap != task.OverlapAllow || s.Name == r.Jobs[0].Spec.Name || len(r.Jobs[0].Spec.Schedule) != 2 {
		t.Errorf("%+v", s)
	}
}

func TestCrontab_RefusesWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"\n@fortnightly x":            `f:2: "@fortnightly" is not one of`,
		"* * * * *":                   "f:1: no command",
		"* * * *":                     `f:1: neither a job nor a setting: found "" instead of the day of the week`,
		"hello world":                 `f:1: neither a job nor a setting: found "hello" instead of the minute`,
		"61 * * * * x":                "f:1: schedule: \"61 * * * *\": minute 61",
		"*/0 * * * * x":               "f:1: schedule:",
		"5/15 * * * * x":              "use 5, or 5-59/15",
		"* * * jan~mar * x":           "a random range requires numbers",
		"* * * * * %x":                "no command before the %",
		"CRON_TZ=Mars/X\n* * * * * x": "f:1: CRON_TZ: ",
		"CARILLON_X=1\n* * * * * x":   "f:1: CARILLON_X: names that begin with CARILLON_",
		"* * * * * x\x00":             "f:1: the line contains a NUL byte",
		`A="b` + "\n* * * * * x":      "f:1: neither a job nor a setting",
	} {
		r := importer.Crontab("f", text+"\n", ofAnn, options)
		if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Place.String()+": "+r.Refusals[0].Why, want) {
			t.Errorf("%q: %v", text, r.Refusals)
		}
	}

	r := importer.Crontab("/etc/anacrontab", "1 5 cron.daily x", ofAnn, options)
	if len(r.Refusals) != 1 || r.Refusals[0].Line != 0 {
		t.Errorf("an anacrontab: %v", r.Refusals)
	}
}

func TestCrontab_Comments(t *testing.T) {
	for text, want := range map[string]string{
		"# a\n* * * * * x":                                "a",
		"# a\n\n* * * * * x":                              "",
		"# a\nA=b\n* * * * * x":                           "",
		"# a\n#5 * * * * old\n* * * * * x":                "",
		"# a\n#@daily old\n# b\n* * * * * x":              "b",
		"# m h dom mon dow command\n* * * * * x":          "",
		"# .---- minute\n# |  |\n# b\n* * * * * x":        "b",
		"# minute (0-59)\n# |\thour\n# |\t|\n* * * * * x": "",
		"# a\x1b[1m\n* * * * * x":                         "a [1m",
	} {
		if got := one(t, text, ofAnn).Spec.Description; got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// A name is derived from the place, the user and the command: not from the line number, the schedule, or other
// lines.
func TestCrontab_NamesStay(t *testing.T) {
	name := one(t, "0 2 * * * root /opt/backup /home", ofSystem).Spec.Name

	for _, text := range []string{"\n# moved\n5 3 * * 1 root /opt/backup /home", "PATH=/x\n@daily root /opt/backup /home", "@hourly root /opt/backup /etc\n0 2 * * * root /opt/backup /home"} {
		r := importer.Crontab("/etc/cron.d/stats", text+"\n", ofSystem, options)
		if got := r.Jobs[len(r.Jobs)-1].Spec.Name; got != name {
			t.Errorf("%q: %s, and was %s", text, got, name)
		}
	}

	for _, text := range []string{"0 2 * * * root /opt/backup /etc", "0 2 * * * ann /opt/backup /home"} {
		if got := one(t, text, ofSystem).Spec.Name; got == name {
			t.Errorf("%q has the name of another", text)
		}
	}

	if name != "web-1-stats-backup-d4dp" { // names that exist in clusters must not change
		t.Errorf("the name is %s", name)
	}
}

func TestCrontab_NamesSayWhatRuns(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/lib/stats/stats-count 1 1":                        "stats-count",
		"test -x /usr/sbin/a && /usr/sbin/a":                    "stats-a",
		"[ -x /sbin/b ] && if [ ! -d /run ]; then /sbin/b; fi":  "stats-b",
		"cd / && nice -n 10 ionice -c3 ./run.sh":                "stats-run.sh",
		"X=1 Y=2 c --flag":                                      "stats-c",
		"if [ -x /usr/sbin/d ]; then nice -n10 /usr/sbin/d; fi": "stats-d",
		"test -x /usr/bin/certbot -a \\! -d /run/systemd/system && perl -e 'sleep int(rand(43200))' && certbot -q renew": "stats-certbot",
		"flock -n /var/lock/queue.lock php /srv/artisan schedule:run":                                                    "stats-artisan",
		"flock -w 10 9 -c 'cd /srv && ./queue'":                                                                          "stats-queue",
		"sudo -u www-data -H /opt/d --all":                                                                               "stats-d",
		"systemd-cat -t backup-tag /opt/e":                                                                               "stats-e",
		"/usr/bin/env -i PATH=/bin chronic timeout -k 5 10m /opt/f":                                                      "stats-f",
		"sleep $(( ( RANDOM % 600 ) + 1 ))m && /opt/g":                                                                   "stats-g",
		"bash -lc 'source ~/.env; /opt/h >> /var/log/h.log 2>&1'":                                                        "stats-h",
		"/usr/bin/python3 -m backup.run":                                                                                 "stats-backup.run",
		"/usr/bin/python3 -u /opt/report.py > err.txt 2>&1":                                                              "stats-report.py",
		"su - ann -s /bin/sh -c '/opt/i x'":                                                                              "stats-i",
		"(cd /srv; nohup ./j) > /dev/null 2>&1 &":                                                                        "stats-j",
		"/opt/k # stops; then /opt/l":                                                                                    "stats-k",
		"true":                                                                                                           "stats-true",
		"'/o p'":                                                                                                         "stats-o",
		"$X/日本":                                                                                                          "stats-job",
	} {
		name := one(t, "* * * * * "+command, ofAnn).Spec.Name
		r := importer.Crontab("/etc/cron.d/stats", "* * * * * root "+command+"\n", ofSystem, options)
		if got := r.Jobs[0].Spec.Name; !strings.HasPrefix(got, "web-1-"+want+"-") || len(got) != len("web-1-"+want)+5 {
			t.Errorf("%s: %s, of ann %s", command, got, name)
		}
	}
}

func TestCrontab_LinesThatDoTheSameAreOneTask(t *testing.T) {
	r := importer.Crontab("ann", "# night\n0 2 * * * x\n# noon\n0 12 * * * x\n0 2 * * * x\nA=b\n0 1 * * * x\n", ofAnn, options)
	if len(r.Jobs) != 2 || len(r.Notes) != 2 || !slices.Equal(r.Jobs[0].Spec.Schedule, []string{"0 2 * * *", "0 12 * * *"}) || r.Jobs[0].Spec.Description != "night\nnoon" {
		t.Errorf("%+v", r)
	}

	if r.Jobs[1].Spec.Name != r.Jobs[0].Spec.Name+"-2" {
		t.Errorf("%s and %s", r.Jobs[0].Spec.Name, r.Jobs[1].Spec.Name)
	}

	var text strings.Builder

	for i := range schedule.MaxExpressions + 3 {
		fmt.Fprintf(&text, "%d * * * * x\n", i)
	}

	if r := importer.Crontab("ann", text.String(), ofAnn, options); len(r.Jobs) != 2 || len(r.Jobs[1].Spec.Schedule) != 3 {
		t.Errorf("%d jobs", len(r.Jobs))
	}
}

func TestFormOf_GoesByThePlace(t *testing.T) {
	for file, want := range map[string]string{
		"/etc/crontab": "{true } true", "/etc/cron.d/x": "{true } true", "x/cron.d/y": "{true } true", "/var/spool/cron/crontabs/ann": "{false ann} true",
		"/var/spool/cron/bob": "{false bob} true", "/var/spool/cron/tabs/eve": "{false eve} true", "crontab": "{false } false", "stdin": "{false } false", "/home/cron/x": "{false } false",
	} {
		form, ok := importer.FormOf(file)
		if got := fmt.Sprint(form, ok); got != want {
			t.Errorf("%s: %s", file, got)
		}
	}
}

// Whatever is accepted is a valid task. Every line is a job, a refusal, a setting, or empty: none is lost.
//
// Verifies: G45
func TestCrontab_LosesNoLine(t *testing.T) {
	words := rapid.SampledFrom(strings.Fields(`* */5 0 7 1-5 59 60 mon JAN ~ 0~9 @daily @reboot root x %y \% A=b # "c" ' SHELL=/bin/zsh CRON_TZ=UTC - , / 日`))
	rapid.Check(t, func(t *rapid.T) {
		var lines []string
		for range rapid.IntRange(0, 6).Draw(t, "lines") {
			lines = append(lines, strings.Join(rapid.SliceOfN(words, 0, 8).Draw(t, "line"), " "))
		}

		form := rapid.SampledFrom([]importer.Form{ofAnn, ofSystem}).Draw(t, "form")
		r := importer.Crontab("f", strings.Join(lines, "\n")+"\n", form, options)
		told := map[int]bool{}
		for _, j := range r.Jobs {
			told[j.Line] = true
			valid(t, j.Spec)
		}

		for _, f := range append(r.Refusals, r.Notes...) {
			told[f.Line] = true
		}

		for i, l := range lines {
			if f := strings.Fields(l); len(f) > 5 && (f[0] == "*" || f[0] == "*/5") && !told[i+1] {
				t.Fatalf("nothing is said of line %d, %q", i+1, l)
			}
		}
	})
}

func valid(t interface{ Fatalf(string, ...any) }, s task.Spec) {
	if err := s.Validate(); err != nil {
		t.Fatalf("%+v: %v", s, err)
	}

	if err := schedule.Check(s.Timing()); err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
}

func FuzzCrontab(f *testing.F) {
	f.Add("# a\nPATH=/bin\n@daily root x\n*/5 1~3 * * mon-fri root cat%a\\%b%c\n", true)
	f.Add("0 0 * * * x\n0 0 * * * x", false)
	f.Fuzz(func(t *testing.T, text string, system bool) {
		names := map[string]bool{}
		for _, j := range importer.Crontab("f", text, importer.Form{System: system, User: "ann"}, options).Jobs {
			valid(t, j.Spec)
			if names[j.Spec.Name] {
				t.Fatalf("the name %s occurs twice", j.Spec.Name)
			}
			names[j.Spec.Name] = true
		}
	})
}

// Lines become one task only if they do the same: not if they differ in their input, which comes after the %.
func TestCrontab_LinesWithAnotherInputAreOtherTasks(t *testing.T) {
	r := importer.Crontab("/etc/cron.d/mail", "0 1 * * * ann mail bob%good night\n0 7 * * * ann mail bob%good morning\n0 8 * * * ann mail bob%good morning\n", ofSystem, options)
	if len(r.Jobs) != 2 || r.Jobs[0].Spec.Action.Process.Stdin.Text != "good night\n" || r.Jobs[1].Spec.Action.Process.Stdin.Text != "good morning\n" {
		t.Fatalf("%+v", r.Jobs)
	}
	if s := r.Jobs[1].Spec.Schedule; !slices.Equal(s, []string{"0 7 * * *", "0 8 * * *"}) || len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Why, "is the same job as line 2: its schedule is added to the task of that line") {
		t.Errorf("%v %v", s, r.Notes)
	}
}
