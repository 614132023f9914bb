package outputmail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	netmail "net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/carillonhq/carillon/executor/executortest"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestMain also runs the test binary as a daemon that dies.
func TestMain(m *testing.M) {
	if os.Getenv("OUTPUTMAIL_TEST_DIR") != "" {
		if err := playDaemon(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}

	leaktest.Main(m)
}

// programs records what would be started. run, if set, decides how it ends.
type programs struct {
	mu   sync.Mutex
	list []process.Program
	run  func(ctx context.Context, p process.Program) error
}

func (f *programs) RunProgram(ctx context.Context, p process.Program) error {
	f.mu.Lock()
	f.list = append(f.list, p)
	f.mu.Unlock()

	if f.run != nil {
		return f.run(ctx, p)
	}

	return nil
}

func (f *programs) Account(p *task.Process) (name, home string, err error) {
	return "ann", "/home/ann", nil
}

// sendmail returns a program that exists.
func sendmail(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sendmail")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}

	return path
}

func newMailer(t testing.TB, f *programs, change ...func(*Config)) *Mailer {
	t.Helper()
	cfg := Config{Policy: Policy{Sendmail: sendmail(t)}, Node: "n1", Spool: spool.New(spool.Config{Dir: t.TempDir()}), Programs: f, Registerer: prometheus.NewRegistry()}
	for _, c := range change {
		c(&cfg)
	}

	m := New(cfg)
	m.host = "vm"

	return m
}

// endOf returns the end of a run of a task that printed a text, which is in the spool.
func endOf(t testing.TB, m *Mailer, name, run, output string, change ...func(*task.Assigned)) End {
	t.Helper()
	a := executortest.Assigned(run, &task.Process{Shell: "echo x; exit 0"})
	a.Task, a.Output.Mail = name, []string{"ops@example.com"}
	for _, c := range change {
		c(&a)
	}

	r := a.Run
	r.State, r.OutputBytes, r.ExitCode = task.Succeeded, int64(len(output)), new(0)
	if output == "" {
		r.State, r.ExitCode = task.Failed, new(3)
		return End{a, r}
	}

	if m != nil {
		path, err := m.cfg.Spool.Path(a.Namespace, a.Task, a.ID, 1)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, []byte(output), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	return End{a, r}
}

// running calls f while the mailer runs, and returns when the mailer has stopped.
func running(t testing.TB, m *Mailer, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	f()
	cancel()

	if err := <-done; err != nil {
		t.Error(err)
	}
}

func outcomes(m *Mailer) string {
	var all []string
	for _, o := range []string{outcomeSent, outcomeFailed, outcomeLimited, outcomeForbidden, outcomeNoSendmail, outcomeRepeated, outcomeDropped} {
		var d dto.Metric
		if err := m.mails.WithLabelValues(o).Write(&d); err != nil {
			panic(err)
		}
		if n := d.GetCounter().GetValue(); n > 0 {
			all = append(all, fmt.Sprintf("%s %v", o, n))
		}
	}

	return strings.Join(all, ", ")
}

// parse returns the mail that a program receives.
func parse(t testing.TB, p process.Program) (*netmail.Message, string) {
	t.Helper()
	v, err := netmail.ReadMessage(bytes.NewReader(p.Stdin))
	if err != nil {
		t.Fatalf("%v in %q", err, p.Stdin)
	}

	var body bytes.Buffer
	if _, err := body.ReadFrom(v.Body); err != nil {
		t.Fatal(err)
	}

	return v, body.String()
}

// The mail is that of Debian's cron, except for the sender.
func TestMailer_SendsAsCron(t *testing.T) {
	f := &programs{}
	m := newMailer(t, f)
	running(t, m, func() {
		m.Offer(endOf(t, m, "job", "r1", "hello\n", func(a *task.Assigned) {
			a.Action.Process = &task.Process{Shell: "echo hello\nsleep 1", Env: map[string]string{"GREETING": "hi there", "PATH": "/bin"}, EnvFrom: []task.EnvFrom{{Secret: "s"}}}
			a.Env = map[string]string{"TOKEN": "of a request"}
			a.Output.Mail = []string{"ops@example.com", "root"}
		}))
	})

	if len(f.list) != 1 || outcomes(m) != "sent 1" {
		t.Fatalf("got %d mails, %s", len(f.list), outcomes(m))
	}
	p := f.list[0]
	if want := []string{"-i", "--", "ops@example.com", "root"}; !slices.Equal(p.Args, want) || p.For == nil {
		t.Errorf("arguments %q for %v", p.Args, p.For)
	}
	want := `From: "Carillon" <ann>
To: ops@example.com, root
Subject: Cron <ann@vm> echo hello
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit
Auto-Submitted: auto-generated
Precedence: bulk
X-Carillon-Run: default/job r1
X-Cron-Env: <GREETING=hi there>
X-Cron-Env: <HOME=/home/ann>
X-Cron-Env: <LOGNAME=ann>
X-Cron-Env: <PATH=/bin>
X-Cron-Env: <SHELL=/bin/sh>

hello
`
	if string(p.Stdin) != want {
		t.Errorf("got\n%s\nwant\n%s", p.Stdin, want)
	}
}

func TestMailer_ComposesHostileValues(t *testing.T) {
	for _, tt := range []struct {
		name           string
		change         func(*task.Assigned)
		output         string
		header, value  string
		args           []string
		body, encoding string
	}{
		{"line breaks in the command", func(a *task.Assigned) { a.Action.Process.Shell = "  true\r\nBcc: all@example.com" }, "x\n",
			"Subject", "Cron <ann@vm> true ", []string{"-i", "--", "ops@example.com"}, "x\n", "8bit"},
		{"a variable with a line break", func(a *task.Assigned) {
			a.Action.Process.Env = map[string]string{"A": "1\nBcc: all@example.com\n\nbody"}
		}, "x\n", "X-Cron-Env", "<A=1 Bcc: all@example.com  body>", nil, "x\n", "8bit"},
		{"an ordinary command", func(a *task.Assigned) {
			a.Action.Process.Shell, a.Action.Process.Command = "", []string{"/usr/bin/backup", "--all"}
		}, "x\n", "Subject", "Cron <ann@vm> /usr/bin/backup --all", nil, "x\n", "8bit"},
		{"another shell", func(a *task.Assigned) {
			a.Action.Process.Shell, a.Action.Process.Command = "", []string{"/bin/bash", "-c", "echo x"}
		}, "x\n", "Subject", "Cron <ann@vm> echo x", nil, "x\n", "8bit"},
		{"not ASCII", func(a *task.Assigned) { a.Action.Process.Shell = "echo ärger" }, "ärger\n",
			"Subject", "=?utf-8?q?Cron_<ann@vm>_echo_=C3=A4rger?=", []string{"-i", "-B8BITMIME", "--", "ops@example.com"}, "ärger\n", "8bit"},
		{"a sender", func(a *task.Assigned) { a.Output.MailFrom = "cron@example.com" }, "x\n",
			"From", `"Carillon" <cron@example.com>`, []string{"-i", "-f", "cron@example.com", "--", "ops@example.com"}, "x\n", "8bit"},
		{"the type of cron", func(a *task.Assigned) {
			a.Action.Process.Env = map[string]string{"CONTENT_TYPE": "text/html\nX: y", "CONTENT_TRANSFER_ENCODING": "7bit"}
		}, "<b>\n", "Content-Type", "text/html X: y", nil, "<b>\n", "7bit"},
		{"a long line", nil, strings.Repeat("=", 400) + "\n", "Subject", "Cron <ann@vm> echo x; exit 0", nil, "", "8bit"},
		{"too long a line", nil, strings.Repeat("a", 1000) + "\n", "Subject", "Cron <ann@vm> echo x; exit 0", nil,
			strings.Repeat(strings.Repeat("a", 75)+"=\n", 13) + strings.Repeat("a", 25) + "\n", "quoted-printable"},
		{"no output", func(a *task.Assigned) { a.Output.MailWhen = task.MailWhenFailure }, "", "To", "ops@example.com", nil,
			"[carillon: the run printed nothing that is stored; it ended as failed: exit code 3]\n", "8bit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &programs{}
			m := newMailer(t, f)
			e := endOf(t, m, "job", "r1", tt.output, func(a *task.Assigned) {
				if tt.change != nil {
					tt.change(a)
				}
			})
			running(t, m, func() { m.Offer(e) })

			if len(f.list) != 1 {
				t.Fatal("no mail", outcomes(m))
			}
			v, body := parse(t, f.list[0])
			if got := v.Header[tt.header]; !slices.Contains(got, tt.value) && !slices.Contains(got, strings.TrimSpace(tt.value)) {
				t.Errorf("%s: %q, want %q", tt.header, got, tt.value)
			}
			if tt.args != nil && !slices.Equal(f.list[0].Args, tt.args) {
				t.Errorf("arguments %q", f.list[0].Args)
			}
			if tt.body != "" && body != tt.body || v.Header.Get("Content-Transfer-Encoding") != tt.encoding || v.Header.Get("Bcc") != "" {
				t.Errorf("%s, body %q, Bcc %q", v.Header.Get("Content-Transfer-Encoding"), body, v.Header.Get("Bcc"))
			}
			for line := range bytes.Lines(f.list[0].Stdin) {
				if len(line) > maxLine {
					t.Errorf("a line has %d bytes", len(line))
				}
			}
		})
	}
}

func TestMailer_CutsLargeOutput(t *testing.T) {
	f := &programs{}
	m := newMailer(t, f)
	running(t, m, func() {
		m.Offer(endOf(t, m, "job", "r1", strings.Repeat("0123456789abcde\n", maxBody/16)+"the rest\n"))
	})

	if _, body := parse(t, f.list[0]); len(body) > maxBody+200 || !strings.HasSuffix(body, "to read all of the output: carillon logs -n default r1]\n") {
		t.Errorf("%d bytes, …%q", len(body), body[len(body)-150:])
	}
}

func TestMailer_ObeysTheNode(t *testing.T) {
	for _, tt := range []struct {
		policy  func(*Policy)
		to      []string
		outcome string
	}{
		{func(p *Policy) { p.Off = true }, []string{"ops@example.com"}, "forbidden 1"},
		{func(p *Policy) { p.To = []string{"*@example.com", "root"} }, []string{"Ops@EXAMPLE.com", "root"}, "sent 1"},
		{func(p *Policy) { p.To = []string{"*@example.com"} }, []string{"ops@example.com", "ann@example.com.evil.org"}, "forbidden 1"},
		{func(p *Policy) { p.To = []string{} }, []string{"ops@example.com"}, "forbidden 1"},
		{func(p *Policy) { p.Sendmail += ".not" }, []string{"ops@example.com"}, "no_sendmail 1"},
		{func(p *Policy) { p.Sendmail = filepath.Dir(p.Sendmail) }, []string{"ops@example.com"}, "no_sendmail 1"},
	} {
		f := &programs{}
		m := newMailer(t, f, func(c *Config) { tt.policy(&c.Policy) })
		running(t, m, func() {
			m.Offer(endOf(t, m, "job", "r1", "x", func(a *task.Assigned) { a.Output.Mail = tt.to }))
		})
		if got := outcomes(m); got != tt.outcome {
			t.Errorf("%+v, %q: %s, want %s", m.cfg.Policy, tt.to, got, tt.outcome)
		}
	}
}

var countOf = regexp.MustCompile(`Cron <\w+@vm> (\d+) more runs of `)

// 10,000 runs with output in a minute: 61 mails at most, and each run is mailed or counted.
func TestMailer_LimitsAndCounts(t *testing.T) {
	shapes := map[string]func(i int) string{
		"one task":     func(int) string { return "job" },
		"each its own": func(i int) string { return fmt.Sprint("job", i) },
		"9 tasks":      func(i int) string { return fmt.Sprint("job", i%9) },
		"100 tasks":    func(i int) string { return fmt.Sprint("job", i%100) },
		"random":       func(int) string { return fmt.Sprint("job", int(rand.ExpFloat64()*5)) },
	}

	for shape, nameOf := range shapes {
		t.Run(shape, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const runs = 10_000
				f := &programs{}
				m := newMailer(t, f)
				running(t, m, func() {
					for i := range runs {
						e := endOf(t, nil, nameOf(i), fmt.Sprint("r", i), "x")
						m.Offer(e)
						time.Sleep(5 * time.Millisecond)
						synctest.Wait()
					}
					time.Sleep(2 * window)
					synctest.Wait()
				})

				mails, counted := 0, 0
				for _, p := range f.list {
					v, _ := parse(t, p)
					if n := countOf.FindStringSubmatch(v.Header.Get("Subject")); n != nil {
						k, _ := strconv.Atoi(n[1])
						counted += k
					}
					mails++
				}
				single := mails
				for _, p := range f.list {
					if v, _ := parse(t, p); countOf.MatchString(v.Header.Get("Subject")) {
						single--
					}
				}

				if mails > 61 || single+counted != runs {
					t.Errorf("%d mails about %d runs and about %d others", mails, single, counted)
				}
				if got := outcomes(m); got != fmt.Sprintf("sent %d, limited %d", mails, counted) {
					t.Errorf("metric %s", got)
				}
			})
		})
	}
}

// The mail that counts runs of one task goes to its recipients, and that about several to all of them, who do not learn of each other.
func TestMailer_CountsGoToTheRecipients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &programs{}
		m := newMailer(t, f)
		running(t, m, func() {
			for i := range 8 {
				m.Offer(endOf(t, nil, "busy", fmt.Sprint("b", i), "x", func(a *task.Assigned) { a.Output.Mail = []string{"busy@example.com"} }))
			}
			for i := range 120 {
				m.Offer(endOf(t, nil, fmt.Sprint("job", i), fmt.Sprint("r", i), "x", func(a *task.Assigned) { a.Output.Mail = []string{fmt.Sprint("u", i, "@example.com")} }))
			}
			time.Sleep(window)
			synctest.Wait()
		})

		var counts []process.Program
		for _, p := range f.list {
			if v, _ := parse(t, p); countOf.MatchString(v.Header.Get("Subject")) {
				counts = append(counts, p)
			}
		}
		if len(f.list) != 61 || len(counts) != 2 {
			t.Fatalf("%d mails, of them %d with counts", len(f.list), len(counts))
		}

		for _, p := range counts {
			v, _ := parse(t, p)
			to := p.Args[slices.Index(p.Args, "--")+1:]
			if p.For != nil {
				if v.Header.Get("To") != "busy@example.com" || !slices.Equal(to, []string{"busy@example.com"}) || !strings.Contains(v.Header.Get("Subject"), " 2 more runs of default/busy ") {
					t.Errorf("to %q: %v", to, v.Header)
				}
				continue
			}
			if v.Header.Get("To") != "undisclosed-recipients:;" || len(to) != maxRecipients || !strings.Contains(v.Header.Get("Subject"), " 67 more runs of tasks on node n1 ") {
				t.Errorf("to %q: %v", to, v.Header)
			}
		}
	})
}

// A sendmail that hangs is killed, and delays neither ends nor other mails for longer.
func TestMailer_KillsASendmailThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := 0
		f := &programs{run: func(ctx context.Context, p process.Program) error {
			if hangs++; hangs <= senders {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}}
		m := newMailer(t, f)
		running(t, m, func() {
			before := time.Now()
			for i := range senders + 1 {
				m.Offer(endOf(t, nil, fmt.Sprint("job", i), "r", "x"))
				synctest.Wait()
			}
			if time.Since(before) > 0 {
				t.Error("Offer waited")
			}

			time.Sleep(sendTimeout)
			synctest.Wait()
		})
		if got := outcomes(m); got != fmt.Sprintf("sent 1, failed %d", senders) {
			t.Error(got)
		}
	})
}

// When the daemon stops, it sends what waits, but not for long.
func TestMailer_Stops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &programs{}
		m := newMailer(t, f)
		running(t, m, func() {
			for i := range 7 {
				m.Offer(endOf(t, nil, "job", fmt.Sprint("r", i), "x"))
			}
		})
		if got := outcomes(m); got != "sent 7, limited 1" { // the seventh counts the rest
			t.Error(got)
		}

		f = &programs{run: func(ctx context.Context, _ process.Program) error { <-ctx.Done(); return context.Cause(ctx) }}
		m = newMailer(t, f)
		before := time.Now()
		running(t, m, func() {
			for i := range senders + 2 {
				m.Offer(endOf(t, nil, fmt.Sprint("job", i), "r", "x"))
			}
		})
		if took := time.Since(before); took != StopTimeout || outcomes(m) != fmt.Sprintf("failed %d, dropped 2", senders) {
			t.Errorf("%s, %s", took, outcomes(m))
		}
	})
}

// playDaemon offers an end, and is killed at a step, with SIGKILL.
func playDaemon() error {
	dir, at := os.Getenv("OUTPUTMAIL_TEST_DIR"), os.Getenv("OUTPUTMAIL_TEST_STEP")
	output := spool.New(spool.Config{Dir: dir})
	runner, err := process.New(process.Config{Node: "n1", Instance: "i1", Dir: dir, Spool: output})
	if err != nil {
		return err
	}

	m := New(Config{Policy: Policy{Sendmail: filepath.Join(dir, "sendmail")}, Node: "n1", Spool: output, Programs: runner})
	m.step = func(step string) {
		if step == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a := executortest.Assigned("r1", &task.Process{Shell: "true"})
	a.Output.Mail = []string{"ops@example.com"}
	r := a.Run
	r.State, r.OutputBytes = task.Failed, 1
	m.Offer(End{a, r})

	return m.Run(ctx)
}

// Whenever the daemon is killed, and however often it records the same end again, a mail is sent at most once. It is lost
// only if the daemon dies after the mark.
//
// Verifies: G61
func TestMailer_SendsOnceWheneverItIsKilled(t *testing.T) {
	for step, want := range map[string]int{"composed": 1, "marked": 0, "sent": 1, "sendmail": 1, "": 1} {
		t.Run("killed when "+step, func(t *testing.T) {
			dir := t.TempDir()
			// As a step of sendmail, the daemon is killed while it runs. It has read the mail, which is sent nevertheless.
			script := "#!/bin/sh\nif [ \"$OUTPUTMAIL\" ]; then exit 9; fi\ncat >" + dir + "/read\n[ -e " + dir + "/kill ] && { rm " + dir + "/kill; kill -9 $PPID; }\ncat " + dir + "/read >>" + dir + "/mails\necho >>" + dir + "/done\n"
			if err := os.WriteFile(filepath.Join(dir, "sendmail"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			if step == "sendmail" {
				if err := os.WriteFile(filepath.Join(dir, "kill"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}

			for life := range 3 {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), "OUTPUTMAIL_TEST_DIR="+dir, "OUTPUTMAIL_TEST_STEP="+step)
				out, err := cmd.CombinedOutput()
				killed := err != nil && strings.Contains(err.Error(), "killed")
				if wantKill := step == "composed" || step != "" && life == 0; killed != wantKill || err != nil && !killed {
					t.Fatalf("life %d: %v, %s", life, err, out)
				}
				if step == "composed" && life == 1 {
					step = "" // the next life sends it
				}
			}

			// sendmail outlives the daemon that it is started by.
			mails := func() int {
				b, err := os.ReadFile(filepath.Join(dir, "mails"))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				return bytes.Count(b, []byte("Subject: "))
			}
			if want > 0 {
				executortest.Eventually(t, "the mail", func() bool { _, err := os.Stat(filepath.Join(dir, "done")); return err == nil })
			}
			if got := mails(); got != want {
				t.Errorf("%d mails, want %d", got, want)
			}
		})
	}
}
