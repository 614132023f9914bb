package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
)

func TestCrontab_NotesAboutLinesThatChange(t *testing.T) {
	for line, want := range map[string]string{
		"* * * * * /opt/a &":                                    "processes in the background (&) are killed",
		"* * * * * nohup /opt/a > /dev/null 2>&1 &":             "processes in the background (&) are killed",
		"* * * * * setsid /opt/a":                               "killed, despite setsid",
		"* * * * * [ -x /a ] && /a":                             "the run fails if the condition ([ … &&) is false: use if … then … fi, or append || true",
		"* * * * * cd /; test -x /a && /a --b > /c 2>&1":        "the run fails if the condition (test … &&) is false",
		"* * * * * grep -q x /a && /b":                          "the run fails if the condition (grep … &&) is false",
		"* * * * * sleep 30; /a":                                "it occupies a slot of its node: use jitter",
		"* * * * * perl -e 'sleep int(rand(43200))' && certbot": "it occupies a slot of its node: use jitter",
		"* * * * * sleep $(( ( RANDOM % 600 ) + 1 ))m && /a":    `cron ends the command at the %, and the rest is its standard input; write \% for a %: the command is incomplete, and fails in cron, too`,
		"0 4 * * * tar czf db-$(date +%Y).tgz /data":            "the command is incomplete",
		"0 4 * * * mail ann%hello":                              `cron ends the command at the %, and the rest is its standard input; write \% for a %`,
		"* * * * * /usr/bin/flock -n /run/x /a":                 "flock -n: the run fails if the lock is taken: use overlap: skip",
		"* * * * * flock -w 5 /run/x /a":                        "flock: use overlap: queue or skip",
		"15 3 1-7 * 1 /a":                                       "runs on these days of the month and also on these days of the week, as in cron",
		`0 5 1 * * test -x /a \`:                                `the \ at the end is part of the command`,
		"* * * * * root cd / && run-parts /etc/cron.hourly":     "the command begins with root: if the file has a user column, use --system",
		"1~9 * * * * /a":                                        "cron chooses the value of ~ each time it starts; the task has a fixed value",
	} {
		if j := one(t, line, ofAnn); !hasNote(j, want) {
			t.Errorf("%s: %q", line, j.Notes)
		}
	}

	for _, line := range []string{
		"* * * * * /a > /dev/null 2>&1", "* * * * * /a &> /dev/null", "* * * * * /a && /b", "* * * * * /a '&' \"x & y\"", "* * * * * if [ -x /a ]; then /a; fi",
		"* * * * * [ -x /a ] && /a || true", "* * * * * [ -x /a ] || /b", `* * * * * date +\%F`, "* * 1 * * /a", "*/2 * */2 * 1 /a", "* * * * * /a # x & y", "* * * * * /opt/sleep-log x",
	} {
		if j := one(t, line, ofAnn); len(j.Notes) > 0 {
			t.Errorf("%s: %q", line, j.Notes)
		}
	}
}

// What cron itself ignores has never run, and must not begin to run.
func TestCrontab_IgnoresWhatCronIgnores(t *testing.T) {
	for _, c := range []struct {
		text, want string
		jobs       int
		debian     int // jobs with Debian's cron
	}{
		{"0 1 * * * /bin/a", "f:1: cron ignores a last line that does not end with a line feed", 0, 0},
		{"0 1 * * * /bin/a\n0 2 * * * /bin/b", "f:2: cron ignores a last line", 1, 0},
		{"0 1 * * * /bin/a\n# end", "", 1, 1},
		{"0 1 * * * /bin/a\n61 * * * * /bin/bad\n", "f:2: schedule:", 1, 0},
		{"0 1 * * * /bin/a\nnonsense\n", "f:2: neither a job nor a setting", 1, 0},
		{"0 1 * * * /bin/a\n&& /bin/b\n", "f:2: neither a job nor a setting", 1, 0},
		{"0 1 * * * /bin/a\n5/10 * * * * /bin/b\n", "f:2: ", 1, 0},
		{"0 1 * * * /bin/a\n0 0 30 2 * /bin/b\n", "f:2: ", 1, 1}, // which cron accepts, but never runs
		{"\xef\xbb\xbf0 1 * * * /bin/a\n0 2 * * * /bin/b\n", "f:1: neither a job", 1, 0},
		{"17 * * * * cd /\r\n25 6 * * * x\r\n", "f:1: the lines end with CR LF", 0, 0},
		{"A=b\n17 * * * * cd /\r\n25 6 * * * x\n", "f:2: the line ends with CR LF", 1, 1},
	} {
		for _, debian := range []bool{false, true} {
			o := options
			o.Debian = debian
			r := importer.Crontab("f", c.text, ofAnn, o)

			want := map[bool]int{false: c.jobs, true: c.debian}[debian]
			if len(r.Jobs) != want {
				t.Errorf("%q, Debian %t: %d jobs, not %d", c.text, debian, len(r.Jobs), want)
			}
			found := c.want == "" && len(r.Refusals) == 0 || slices.ContainsFunc(r.Refusals, func(x importer.Refusal) bool { return strings.HasPrefix(x.Place.String()+": "+x.Why, c.want) })
			if !found {
				t.Errorf("%q: %v", c.text, r.Refusals)
			}
			if debian && c.jobs > c.debian && !slices.ContainsFunc(r.Refusals, func(x importer.Refusal) bool {
				return strings.Contains(x.Why, "cron ignores the whole file because of line")
			}) {
				t.Errorf("%q: nothing says that Debian's cron ignores the file: %v", c.text, r.Refusals)
			}
			if !debian && c.jobs > c.debian && (len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0].Why, "Debian's cron ignores the whole file")) {
				t.Errorf("%q: %v", c.text, r.Notes)
			}
		}
	}
}

// cronie draws a value from a range with ~ when it starts. A task has one of them for ever, also after the 28th.
func TestCrontab_RandomRanges(t *testing.T) {
	days := map[string]bool{}
	for i := range 300 {
		s := one(t, fmt.Sprintf("0 0 1~31 * * /bin/b %d", i), ofAnn).Spec
		days[strings.Fields(s.Schedule[0])[2]] = true
	}
	if len(days) != 31 || !days["1"] || !days["31"] {
		t.Errorf("%v", days)
	}

	one(t, "~ ~ ~ ~ ~ /bin/b", ofAnn)

	for line, want := range map[string]string{
		"30~10 * * * * /d":  `"30~10": the number before ~ is greater than the one after it`,
		"0 0 1~40 * * /d":   `"1~40": the day of the month is not between 1 and 31`,
		"0 0 1~31/2 * * /d": `"1~31/2": a step after ~ is not supported with days after the 28th`,
		"* * * jan~mar * x": `a random range requires numbers`,
	} {
		r := importer.Crontab("f", line+"\n", ofAnn, options)
		if len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, want) || strings.Contains(r.Refusals[0].Why, "H(") {
			t.Errorf("%s: %v", line, r.Refusals)
		}
	}

	o := options
	o.Debian = true
	if r := importer.Crontab("f", "1~9 * * * * /d\n", ofAnn, o); len(r.Jobs) > 0 || !strings.Contains(r.Refusals[0].Why, "Debian's cron does not know ~") {
		t.Errorf("%+v", r)
	}
}

func TestCrontab_UnknownUsers(t *testing.T) {
	o := options
	o.Home = func(name string) string { return map[string]string{"root": "/root", "ann": "/home/ann"}[name] }

	r := importer.Crontab("/etc/cron.d/x", "0 1 * * * root /bin/a\n0 2 * * * eve /bin/b\n*/5 * * * * sleep 5; curl x\n0 3 * * * /etc/daily\n", ofSystem, o)
	if len(r.Jobs) != 2 || len(r.Jobs[0].Notes) > 0 || !hasNote(r.Jobs[1], `the user "eve" does not exist on this host`) {
		t.Errorf("%+v", r.Jobs)
	}
	if len(r.Refusals) != 2 || !strings.Contains(r.Refusals[0].Why, `the user "sleep" does not exist on this host: is the user column missing?`) ||
		!strings.Contains(r.Refusals[1].Why, `"/etc/daily" is not the name of a user: if the file has no user column, use --user NAME`) {
		t.Errorf("%v", r.Refusals)
	}
}

func TestCrontab_OneNoteAboutMail(t *testing.T) {
	r := importer.Crontab("f", "MAILTO=\"\"\nMAILTO=ann\n* * * * * x\nMAILTO=bob\nMAILFROM=c\n* * * * * y\n", ofAnn, options)
	if len(r.Notes) != 1 || r.Notes[0].Line != 2 || !strings.Contains(r.Notes[0].Why, "alerts: {notify: [RECEIVER]}") {
		t.Errorf("%v", r.Notes)
	}
}

// Who gets mail from cron gets it from the tasks.
func TestCrontab_MailTo(t *testing.T) {
	for _, c := range []struct {
		name, settings string
		owner          bool
		want, from     string
		note           string
	}{
		{"an address", "MAILTO=ops@example.com\n", false, "ops@example.com", "", ""},
		{"quotes", `MAILTO="ops@example.com"` + "\n", false, "ops@example.com", "", ""},
		{"several", "MAILTO=ops@example.com,root,ops@example.com\n", false, "ops@example.com root", "", ""},
		{"a user", "MAILTO=root\n", false, "root", "", ""},
		{"nobody", "MAILTO=\"\"\n", true, "", "", ""},
		{"nobody, without quotes", "MAILTO=\n", true, "", "", ""},
		{"the last one counts", "MAILTO=a@example.com\nMAILTO=b@example.com\n", false, "b@example.com", "", ""},
		{"not set", "", false, "", "", ""},
		{"not set, for the owner", "", true, "ann", "", ""},
		{"set, not for the owner", "MAILTO=ops@example.com\n", true, "ops@example.com", "", ""},
		{"a sender", "MAILTO=ops@example.com\nMAILFROM=cron@example.com\n", false, "ops@example.com", "cron@example.com", ""},
		{"a sender alone", "MAILFROM=cron@example.com\n", false, "", "", ""},
		{"a bad sender", "MAILTO=root\nMAILFROM=-X/tmp/x\n", false, "root", "", `MAILFROM: "-X/tmp/x" is not imported`},
		{"an option", "MAILTO=-X/tmp/x\n", true, "", "", `MAILTO: "-X/tmp/x" is not imported`},
		{"a space", "MAILTO=a@example.com, b@example.com\n", true, "", "", `MAILTO: "a@example.com, b@example.com" is not imported`},
		{"too many", "MAILTO=a,b,c,d,e,f,g,h,i,j,k\n", false, "a b c d e f g h i j", "", "MAILTO has 11 recipients"},
	} {
		o := options
		o.MailOwner = c.owner
		r := importer.Crontab("f", c.settings+"* * * * * x\n", ofAnn, o)
		if len(r.Jobs) != 1 {
			t.Errorf("%s: %+v", c.name, r)
			continue
		}

		j := r.Jobs[0]
		if got := strings.Join(j.Spec.Output.Mail, " "); got != c.want || j.Spec.Output.MailFrom != c.from || j.Spec.Output.MailWhen != "" {
			t.Errorf("%s: mails to %q from %q, want %q from %q", c.name, got, j.Spec.Output.MailFrom, c.want, c.from)
		}
		if c.note == "" && len(j.Notes) > 0 || c.note != "" && !hasNote(j, c.note) {
			t.Errorf("%s: notes %q", c.name, j.Notes)
		}
	}

	// The recipients are a part of the task, and the type of the mail a variable, as in cron.
	r := importer.Crontab("f", "CONTENT_TYPE=text/html\nMAILTO=a\n1 * * * * x\nMAILTO=b\n2 * * * * x\nMAILTO=a\n3 * * * * x\n", ofAnn, options)
	if len(r.Jobs) != 2 || len(r.Jobs[0].Spec.Schedule) != 2 || r.Jobs[1].Spec.Output.Mail[0] != "b" || r.Jobs[0].Spec.Action.Process.Env["CONTENT_TYPE"] != "text/html" {
		t.Errorf("%+v", r.Jobs)
	}
}

// A crontab that was copied from /etc is read as what it is, or not at all.
func TestGuessForm(t *testing.T) {
	exists := func(name string) bool { return slices.Contains([]string{"root", "ann", "git", "www-data"}, name) }

	for text, want := range map[string]string{
		"17 * * * * root cd / && run-parts --report /etc/cron.hourly\n":           "system",
		"SHELL=/bin/sh\n# m h dom mon dow user\tcommand\n17 * * * * eve /bin/a\n": "system",
		"1 2 * * * root /a\n@daily www-data /b\n":                                 "system",
		"1 2 * * * /bin/a\n@daily echo x\n":                                       "user",
		"# m h  dom mon dow   command\n1 2 * * * /bin/a\n":                        "user",
		"1 2 * * * git pull\n1 3 * * * /bin/a\n":                                  "user",
		"":                                                                        "user",
		"1 2 * * * git pull\n":                                                    "ask", // git is a command and a user
		"2 2\t* * *\troot cd / && run-parts x\n0 8 * * * PATH=$X update-list\n* 16 * * * cd /x\n": "ask",
	} {
		system, known := importer.GuessForm(text, exists)
		got := map[bool]string{true: "system", false: "user"}[system]
		if !known {
			got = "ask"
		}
		if got != want {
			t.Errorf("%q: %s, not %s", text, got, want)
		}
	}
}
