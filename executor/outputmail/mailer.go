// Package outputmail sends the output of attempts by mail, as cron does. The executor offers it the recorded end of each
// run's last attempt, and it starts the sendmail of the node.
//
// Guarantees:
//
//   - A mail about an attempt is sent at most once (G61). A mark in the spool is synced before sendmail starts, and nobody
//     sends a mail about an attempt that has one. A crash in between loses the mail, but not the output.
//   - Whatever runs print, a node starts sendmail at most 61 times a minute, and for one task at most 7 times. Mails above
//     these limits are counted, and a mail says how many there were.
//   - Offer never waits. A sendmail that hangs is killed after a minute, and delays only mails.
//   - Recipients and sender are arguments that were checked; no output and no command can add one.
//
// Not guaranteed: a daemon that starts again begins a new minute, so that a node whose daemon dies often sends more.
// A mail that sendmail does not accept is not sent again. When the daemon stops, mails wait for StopTimeout, and then
// are lost.
//
// The package uses no key of etcd. Its memory is bounded: at most maxQueued ends, and the counts of a minute.
package outputmail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
)

const (
	// StopTimeout is how long mails are still sent when the daemon stops.
	StopTimeout = 5 * time.Second
	// sendTimeout is how long sendmail may take for a mail.
	sendTimeout = time.Minute
	// senders is the number of mails that are sent at the same time, and maxQueued that of those that wait.
	senders   = 4
	maxQueued = 2 * perNode
)

// The outcomes of carillon_output_mails_total.
const (
	outcomeSent       = "sent"
	outcomeFailed     = "failed"
	outcomeLimited    = "limited"
	outcomeForbidden  = "forbidden"
	outcomeNoSendmail = "no_sendmail"
	outcomeRepeated   = "repeated"
	outcomeDropped    = "dropped"
)

// Policy is what the administrator of the node allows.
type Policy struct {
	Sendmail string   // the absolute path of sendmail; "": no mail is sent
	Off      bool     // no mail is sent, although there may be a sendmail
	To       []string // patterns of the addresses that may get mail, such as *@example.com; nil: all
}

// Programs runs the program of the node. *process.Runner implements it.
type Programs interface {
	RunProgram(ctx context.Context, p process.Program) error
	Account(p *task.Process) (name, home string, err error)
}

// Config configures a Mailer.
type Config struct {
	Policy
	Node     string // the name of the node, for mails about the node
	Spool    *spool.Spool
	Programs Programs

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// End is the recorded end of an attempt, after which its run has no other one.
type End struct {
	Attempt task.Assigned
	Run     task.Run
}

// Mailer sends mails about ends. Its methods may be called from any goroutine.
type Mailer struct {
	cfg   Config
	host  string // of the subject: without the domain, as cron has it
	log   *zap.Logger
	mails *prometheus.CounterVec

	queue chan mail   // to the senders
	woken wake.Signal // the first count of a window was added

	mu     sync.Mutex // guards limits
	limits limits

	step func(string) // called after each step of a mail, in tests
}

// mail is a mail to send: about an end, or with counts of others.
type mail struct {
	end    *End
	counts *counted
}

// New returns a mailer. Run must be called, and Offer not any more when Run has returned.
func New(cfg Config) *Mailer {
	host, _ := os.Hostname() // without one, the node's name has to do
	host, _, _ = strings.Cut(cmp.Or(host, cfg.Node), ".")

	m := &Mailer{
		cfg: cfg, host: host, log: cmp.Or(cfg.Logger, zap.NewNop()).Named("mail"), queue: make(chan mail, maxQueued), woken: wake.NewSignal(),
		mails: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_output_mails_total",
			Help: "Mails with the output of runs, by outcome. sent: sendmail accepted it. failed: it did not. limited: only counted, because of the limits of a minute. forbidden: the settings of the node do not allow the recipients, or any mail. no_sendmail: the node has none. repeated: it may have been sent before. dropped: the daemon stopped."}, []string{"outcome"}),
		step: func(string) {},
	}
	for _, outcome := range []string{outcomeSent, outcomeFailed, outcomeLimited, outcomeForbidden, outcomeNoSendmail, outcomeRepeated, outcomeDropped} {
		m.mails.WithLabelValues(outcome)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(m.mails)
	}

	return m
}

// Offer takes the recorded end of a run's last attempt, which is to be mailed. It does not wait.
func (m *Mailer) Offer(e End) {
	if outcome := m.cfg.refuse(e.Attempt.Output.Mail); outcome != "" {
		m.count(outcome)
		m.log.Warn("the output of a run is not mailed", zap.String("task", e.Attempt.Namespace+"/"+e.Attempt.Task), zap.String("run", e.Run.ID), zap.String("reason", outcome))
		return
	}

	m.mu.Lock()
	send := m.limits.add(time.Now(), &e)
	m.mu.Unlock()

	if send {
		m.enqueue(mail{end: &e})
		return
	}

	m.count(outcomeLimited)
	m.woken.Send()
}

// enqueue passes a mail to the senders. The limits keep the queue from filling up, unless mails of several minutes hang.
func (m *Mailer) enqueue(v mail) {
	select {
	case m.queue <- v:
	default:
		m.count(outcomeDropped)
		m.log.Warn("a mail was dropped: sendmail is too slow")
	}
}

func (m *Mailer) count(outcome string) { m.mails.WithLabelValues(outcome).Inc() }

// refuse returns why the node does not send mail to these addresses, as an outcome, or "".
func (p Policy) refuse(to []string) string {
	switch {
	case p.Off, !p.allowsAll(to):
		return outcomeForbidden
	case !p.HasSendmail():
		return outcomeNoSendmail
	}

	return ""
}

// HasSendmail reports whether the node can send mail.
func (p Policy) HasSendmail() bool {
	if p.Sendmail == "" || p.Off {
		return false
	}

	info, err := os.Stat(p.Sendmail)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// allowsAll reports whether each address matches one of the patterns, in which case does not matter.
func (p Policy) allowsAll(to []string) bool {
	if p.To == nil {
		return true
	}

	for _, address := range to {
		if !slices.ContainsFunc(p.To, func(pattern string) bool {
			is, err := path.Match(strings.ToLower(pattern), strings.ToLower(address))
			return err == nil && is
		}) {
			return false
		}
	}

	return true
}

// Run sends mails until ctx ends, and what is then left within StopTimeout. It always returns nil.
func (m *Mailer) Run(ctx context.Context) error {
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for v := range m.queue {
				m.sendMail(life, v)
			}
		})
	}

	m.endWindows(ctx)

	limit := time.AfterFunc(StopTimeout, func() { stop(errors.New("the daemon stops")) })
	defer limit.Stop()

	m.sendCounts(time.Now().Add(window)) // also those of the current window
	close(m.queue)
	all.Wait()

	return nil
}

// endWindows sends the counts of each window when it ends, until ctx ends.
func (m *Mailer) endWindows(ctx context.Context) {
	timer := time.NewTimer(window)
	defer timer.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-m.woken:
		case <-timer.C:
		}

		if next := m.sendCounts(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// sendCounts sends the counts of windows that have ended, and returns when the current one ends; zero: there is none.
func (m *Mailer) sendCounts(now time.Time) time.Time {
	m.mu.Lock()
	done, next := m.limits.takeDone(now)
	m.mu.Unlock()

	for _, c := range done {
		m.enqueue(mail{counts: c})
	}

	return next
}

// sendMail sends a mail, unless its attempt is marked.
func (m *Mailer) sendMail(ctx context.Context, v mail) {
	outcome, err := m.trySend(ctx, v)
	m.count(outcome)

	if err != nil {
		fields := []zap.Field{zap.Error(err)}
		if v.end != nil {
			fields = append(fields, zap.String("task", v.end.Attempt.Namespace+"/"+v.end.Attempt.Task), zap.String("run", v.end.Run.ID))
		}
		m.log.Warn("cannot mail output", fields...)
	}
}

func (m *Mailer) trySend(ctx context.Context, v mail) (outcome string, err error) {
	if ctx.Err() != nil {
		return outcomeDropped, context.Cause(ctx)
	}

	program := process.Program{Path: m.cfg.Sendmail}
	if v.counts != nil {
		program.For = v.counts.process // nil, and so the daemon's user, for several tasks
		program.Args, program.Stdin, err = m.composeCounts(v.counts)
	} else {
		program.For = v.end.Attempt.Action.Process
		program.Args, program.Stdin, err = m.composeEnd(v.end)
	}
	if err != nil {
		return outcomeFailed, err
	}

	if v.end != nil {
		a := &v.end.Attempt
		m.step("composed")

		// From here on, the mail counts as sent. If the daemon dies before sendmail has it, the mail is lost (G61).
		err := m.cfg.Spool.MarkMailed(a.Namespace, a.Task, a.ID, max(a.Attempt, 1))
		if errors.Is(err, spool.ErrMailed) {
			return outcomeRepeated, err
		}
		if err != nil {
			return outcomeFailed, err
		}
		m.step("marked")
	}

	ctx, cancel := context.WithTimeoutCause(ctx, sendTimeout, fmt.Errorf("it did not end within %s", sendTimeout))
	defer cancel()

	if err := m.cfg.Programs.RunProgram(ctx, program); err != nil {
		return outcomeFailed, err
	}
	m.step("sent")

	return outcomeSent, nil
}

// readOutput returns the stored output of an attempt, up to maxBody, and whether there is more.
func (m *Mailer) readOutput(a *task.Assigned) (text []byte, more bool, err error) {
	r, err := m.cfg.Spool.Open(a.Namespace, a.Task, a.ID, max(a.Attempt, 1))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer r.Close()

	text, err = io.ReadAll(io.LimitReader(r, maxBody+1))

	return text[:min(len(text), maxBody)], len(text) > maxBody, err
}
