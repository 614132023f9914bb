package cronlog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/cronlog"
)

// now is after all times of the tests.
var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// read reads a log in the zone of Berlin.
func read(t *testing.T, text string) cronlog.Log {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}

	var l cronlog.Log
	if err := l.Add(strings.NewReader(text), berlin, now); err != nil {
		t.Fatal(err)
	}

	return l
}

func TestLog_ReadsTheFormsOfLogs(t *testing.T) {
	const want = "web1 root 2026-11-20T02:17:01Z run-parts /etc/cron.hourly"

	for name, line := range map[string]string{
		"journalctl -o short-iso":        `2026-11-20T03:17:01+01:00 web1 CRON[123]: (root) CMD (run-parts /etc/cron.hourly)`,
		"of an older systemd":            `2026-11-20T03:17:01+0100 web1 CRON[123]: (root) CMD (run-parts /etc/cron.hourly)`,
		"-o short-iso-precise":           `2026-11-20T02:17:01.000000+00:00 web1 CRON[123]: (root) CMD (run-parts /etc/cron.hourly)`,
		"rsyslog":                        `2026-11-20T02:17:01Z web1.example.com CRON[123]: (root) CMD (   run-parts /etc/cron.hourly)`,
		"the traditional file":           `Nov 20 03:17:01 WEB1 CRON[123]: (root) CMD (run-parts /etc/cron.hourly)`,
		"an old Debian":                  `Nov 20 03:17:01 web1 /USR/SBIN/CRON[123]: (root) CMD (run-parts /etc/cron.hourly)`,
		"cronie":                         `Nov 20 03:17:01 web1 CROND[123]: (root) CMD (run-parts /etc/cron.hourly)`,
		"Debian's cron with process ids": `Nov 20 03:17:01 web1 CRON[123]: (root) CMD ([124] run-parts /etc/cron.hourly)`,
		"BusyBox":                        `Nov 20 03:17:01 web1 crond[1]: USER root pid  123 cmd run-parts /etc/cron.hourly`,
		"journalctl -o json":             `{"__REALTIME_TIMESTAMP":"1795141021000000","_HOSTNAME":"web1","SYSLOG_IDENTIFIER":"CRON","MESSAGE":"(root) CMD (run-parts /etc/cron.hourly)"}`,
		"journalctl -o json with bytes":  `{"__REALTIME_TIMESTAMP":"1795141021000000","_HOSTNAME":"web1","SYSLOG_IDENTIFIER":"CRON","MESSAGE":[40,114,111,111,116,41,32,67,77,68,32,40,114,117,110,45,112,97,114,116,115,32,47,101,116,99,47,99,114,111,110,46,104,111,117,114,108,121,41]}`,
	} {
		l := read(t, line+"\n")
		if len(l.Starts) != 1 {
			t.Errorf("%s: %d starts", name, len(l.Starts))
			continue
		}

		s := l.Starts[0]
		if got := fmt.Sprintf("%s %s %s %s", s.Host, s.User, s.Time.UTC().Format(time.RFC3339), s.Command); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestLog_SkipsOtherLines(t *testing.T) {
	l := read(t, `-- Journal begins at Fri 2026-11-20 00:00:00 CET. --
Nov 20 03:17:01 web1 CRON[123]: pam_unix(cron:session): session opened for user root(uid=0) by (uid=0)
Nov 20 03:17:01 web1 CROND[123]: (root) CMDOUT (CMD (x))
Nov 20 03:17:01 web1 CRON[123]: (root) END (x)
Nov 20 03:17:01 web1 CRON[123]: (CRON) info (No MTA installed, discarding output)
Nov 20 03:17:01 web1 sshd[123]: (root) CMD (x)
Nov 31 03:17:01 web1 CRON[123]: (root) CMD (x)
{"MESSAGE":"(root) CMD (x)"}
{broken
nonsense

Nov 20 04:00:00 web1 kernel: hello
`)
	span := l.Spans["web1"]
	if len(l.Starts) > 0 || span.First.UTC().Format("15:04:05") != "02:17:01" || span.Last.UTC().Format("15:04:05") != "03:00:00" {
		t.Errorf("%v, %v", l.Starts, span)
	}
}

// Traditional times have no year.
func TestLog_AssumesTheLastYearInWhichATimeIsPast(t *testing.T) {
	for text, want := range map[string]string{
		"Nov 20 03:17:01": "2026-11-20T02:17:01Z", "Nov 21 03:17:01": "2026-11-21T02:17:01Z", "Dec 31 03:17:01": "2025-12-31T02:17:01Z", "Feb 29 03:17:01": "2024-02-29T02:17:01Z",
	} {
		l := read(t, text+" web1 CRON[123]: (root) CMD (x)\n")
		if got := l.Starts[0].Time.UTC().Format(time.RFC3339); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// cron escapes what is not printable, as mkprint.
func TestNormalize(t *testing.T) {
	for text, want := range map[string]string{"  a b ": "a b", "a\tb": "a^Ib", "ä": `\303\244`, "a\x7fb": "a^?b", "date +%H": "date +%H"} {
		if got := cronlog.Normalize(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// at returns a time on the day of the tests.
func at(clock string) time.Time {
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		panic(err)
	}
	return time.Date(2026, 11, 20, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// logOf returns a log of a host in which cron starts x of root at these times.
func logOf(host, first, last string, starts ...string) cronlog.Log {
	l := cronlog.Log{Spans: map[string]cronlog.Span{host: {First: at(first), Last: at(last)}}}
	for _, s := range starts {
		l.Starts = append(l.Starts, cronlog.Start{Host: host, User: "root", Command: "x", Time: at(s)})
	}
	return l
}

// jobOf returns a job with these ticks.
func jobOf(since string, hosts []string, ticks ...string) cronlog.Job {
	j := cronlog.Job{Task: "x", User: "root", Command: "x", Hosts: hosts, Since: at(since)}
	for _, s := range ticks {
		j.Ticks = append(j.Ticks, cronlog.Tick{Time: at(s)})
	}
	return j
}

// describe returns a result as text.
func describe(lines []cronlog.Line) string {
	clock := func(times []time.Time) string {
		var list []string
		for _, t := range times {
			list = append(list, t.Format("15:04"))
		}
		return strings.Join(list, " ")
	}

	var out []string
	for _, l := range lines {
		out = append(out, fmt.Sprintf("%s both %d cron [%s] shadow [%s] outcomes %d", l.Host, l.Both, clock(l.OnlyCron), clock(l.OnlyShadow), len(l.Outcomes)))
	}

	return strings.Join(out, "\n")
}

func TestCompare(t *testing.T) {
	web1 := []string{"web1"}
	log := logOf("web1", "01:00:30", "05:00:01", "02:00:01", "03:00:02", "04:00:01")

	for name, c := range map[string]struct {
		log    cronlog.Log
		jobs   []cronlog.Job
		limits cronlog.Limits
		want   string
	}{
		"the same":                  {log, []cronlog.Job{jobOf("00:00:00", web1, "02:00:00", "03:00:00", "04:00:00")}, cronlog.Limits{}, "web1 both 3 cron [] shadow [] outcomes 0"},
		"one on each side":          {log, []cronlog.Job{jobOf("00:00:00", web1, "02:00:00", "03:30:00", "04:00:00")}, cronlog.Limits{}, "web1 both 2 cron [03:00] shadow [03:30] outcomes 0"},
		"before the shadow":         {log, []cronlog.Job{jobOf("02:30:00", web1, "03:00:00", "04:00:00")}, cronlog.Limits{}, "web1 both 2 cron [] shadow [] outcomes 0"},
		"in the shadow's minute":    {log, []cronlog.Job{jobOf("02:00:30", web1, "03:00:00", "04:00:00")}, cronlog.Limits{}, "web1 both 2 cron [] shadow [] outcomes 0"},
		"outside of the log":        {log, []cronlog.Job{jobOf("00:00:00", web1, "00:30:00", "02:00:00", "03:00:00", "04:00:00", "06:00:00")}, cronlog.Limits{}, "web1 both 3 cron [] shadow [] outcomes 0"},
		"where the log begins":      {log, []cronlog.Job{jobOf("00:00:00", web1, "01:00:00", "02:00:00", "03:00:00", "04:00:00", "05:00:00")}, cronlog.Limits{}, "web1 both 3 cron [] shadow [] outcomes 0"},
		"cron has died":             {log, []cronlog.Job{jobOf("00:00:00", web1, "02:00:00", "03:00:00", "04:00:00", "06:00:00")}, cronlog.Limits{Until: at("06:30:00")}, "web1 both 3 cron [] shadow [06:00] outcomes 0"},
		"a limit is not inclusive":  {log, []cronlog.Job{jobOf("00:00:00", web1, "03:00:00")}, cronlog.Limits{Since: at("03:00:00"), Until: at("04:00:00")}, "web1 both 1 cron [] shadow [] outcomes 0"},
		"one minute of one command": {logOf("web1", "02:00:01", "02:00:01", "02:00:01"), []cronlog.Job{jobOf("00:00:00", web1, "02:00:00")}, cronlog.Limits{}, "web1 both 1 cron [] shadow [] outcomes 0"},
		"twice in a minute":         {logOf("web1", "01:00:00", "03:00:00", "02:00:01", "02:00:01"), []cronlog.Job{jobOf("00:00:00", web1, "02:00:00")}, cronlog.Limits{}, "web1 both 1 cron [02:00] shadow [] outcomes 0"},
		"two tasks of one command":  {logOf("web1", "01:00:00", "05:00:00", "02:00:01", "03:00:01"), []cronlog.Job{jobOf("00:00:00", web1, "02:00:00"), jobOf("00:00:00", web1, "03:00:00")}, cronlog.Limits{}, "web1 both 2 cron [] shadow [] outcomes 0"},
		"no task":                   {logOf("web1", "01:00:00", "05:00:00", "02:00:01"), nil, cronlog.Limits{}, "web1 both 0 cron [02:00] shadow [] outcomes 0"},
		"no start":                  {logOf("web1", "01:00:00", "05:00:00"), []cronlog.Job{jobOf("00:00:00", web1, "02:00:00")}, cronlog.Limits{}, "web1 both 0 cron [] shadow [02:00] outcomes 0"},
	} {
		lines, silent := cronlog.Compare(c.log, c.jobs, c.limits)
		if got := describe(lines); got != c.want || len(silent) > 0 {
			t.Errorf("%s: %s; want %s; silent: %v", name, got, c.want, silent)
		}
	}
}

// A task for several hosts has one record for each tick, and each host's cron one line.
func TestCompare_ComparesEachHost(t *testing.T) {
	log := logOf("web1", "01:00:00", "05:00:00", "02:00:01")
	log.Join(logOf("web2", "01:00:00", "05:00:00"))
	lines, silent := cronlog.Compare(log, []cronlog.Job{jobOf("00:00:00", []string{"web1", "web2", "web3"}, "02:00:00")}, cronlog.Limits{})

	if got, want := describe(lines), "web1 both 1 cron [] shadow [] outcomes 0\nweb2 both 0 cron [] shadow [02:00] outcomes 0"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if !slices.Equal(silent, []string{"web3"}) {
		t.Errorf("hosts without a log: %v", silent)
	}
}

// A tick that was missed, or that ran, differs from what a shadow does, although it has the same time.
func TestCompare_ReportsTicksThatAreNotOfAShadow(t *testing.T) {
	j := jobOf("00:00:00", []string{"web1"}, "02:00:00")
	j.Ticks[0].Outcome = "missed: down"
	lines, _ := cronlog.Compare(logOf("web1", "01:00:00", "05:00:00", "02:00:01"), []cronlog.Job{j}, cronlog.Limits{})

	if got, want := describe(lines), "web1 both 1 cron [] shadow [] outcomes 1"; got != want || lines[0].Same() {
		t.Errorf("%s; want %s, different", got, want)
	}
}

// Cron starts a command on each host. A task that runs on only some of them is not the same.
func TestCompare_ReportsTicksThatRunOnFewerHosts(t *testing.T) {
	log := logOf("web1", "01:00:00", "05:00:00", "02:00:01")
	log.Join(logOf("web2", "01:00:00", "05:00:00", "02:00:01"))
	j := jobOf("00:00:00", []string{"web1", "web2"}, "02:00:00")

	for runs, want := range map[int]string{0: "", 1: "1 run for 2 hosts", 2: ""} {
		j.Runs = runs
		lines, _ := cronlog.Compare(log, []cronlog.Job{j}, cronlog.Limits{})
		for _, l := range lines {
			if got := fmt.Sprint(l.Outcomes); l.Same() != (want == "") || !strings.Contains(got, want) || l.Both != 1 {
				t.Errorf("%d runs: %s: both %d, outcomes %s", runs, l.Host, l.Both, got)
			}
		}
	}

	if j.Ticks[0].Outcome != "" {
		t.Error("the ticks of the caller have changed")
	}
}

// A job whose times are random is not compared, and its starts are not those of a command without a task.
func TestCompare_LeavesOutInexactJobs(t *testing.T) {
	j := jobOf("00:00:00", []string{"web1", "web2"})
	j.Inexact = true
	lines, silent := cronlog.Compare(logOf("web1", "01:00:00", "05:00:00", "02:00:01"), []cronlog.Job{j}, cronlog.Limits{})

	if len(lines) > 0 || len(silent) > 0 {
		t.Errorf("%s; silent: %v", describe(lines), silent)
	}
}

// Logs that are collected every day with --since yesterday overlap. Two jobs in the same second have different processes.
func TestCompare_CountsTheSameStartOnce(t *testing.T) {
	const first, second = "2026-11-20T02:00:01+00:00 web1 CRON[10]: (root) CMD (x)\n", "2026-11-20T02:00:01+00:00 web1 CRON[11]: (root) CMD (x)\n"
	const begin, end = "2026-11-20T01:00:00+00:00 web1 kernel: a\n", "2026-11-20T05:00:00+00:00 web1 kernel: b\n"
	const again = "2026-11-20T03:00:01+01:00 web1 CRON[10]: (root) CMD (x)\n" // first in another zone
	const busyBox = "Nov 20 03:00:01 web1 crond[1]: USER root pid  10 cmd x\n"
	const journal = `{"__REALTIME_TIMESTAMP":"1795140001000000","_HOSTNAME":"web1","_PID":"10","SYSLOG_IDENTIFIER":"CRON","MESSAGE":"(root) CMD (x)"}` + "\n"
	const anonymous = "2026-11-20T02:00:01+00:00 web1 CRON: (root) CMD (x)\n"

	for text, want := range map[string]int{first + first: 1, first + again: 1, first + second: 2, busyBox + busyBox: 1, journal + journal: 1, anonymous + anonymous: 2} {
		l := read(t, begin+text)
		l.Join(read(t, end))
		lines, _ := cronlog.Compare(l, nil, cronlog.Limits{})
		if len(lines) != 1 || len(lines[0].OnlyCron) != want {
			t.Errorf("%s: %s, want %d starts", text, describe(lines), want)
		}
	}
}
