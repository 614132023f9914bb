package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// alarmEvery is the interval at which the node looks for problems, and alarmCheckTimeout how long etcd may take to answer.
	alarmEvery        = 5 * time.Second
	alarmCheckTimeout = 5 * time.Second
	// alarmAfter is for how long a problem must last before the alarm command runs, and for how long it must be gone.
	alarmAfter = time.Minute
	// alarmRepeat is the minimum time between two runs for problems. A run that fails is repeated earlier, at first after alarmRetry.
	alarmRepeat = 15 * time.Minute
	alarmRetry  = time.Minute
	// alarmTimeout is the time limit of a run.
	alarmTimeout = 30 * time.Second
	// alarmText is how many bytes of the cause of a problem a run gets.
	alarmText = 500
)

// alarmProblem is why a node can neither fire nor send messages about alerts. Its value is CARILLON_ALARM_PROBLEM.
type alarmProblem string

const (
	alarmEtcdSilent   alarmProblem = task.WarnEtcdSilent
	alarmEtcdRestored alarmProblem = task.WarnEtcdRestored
	alarmNoLeader     alarmProblem = task.WarnNoLeader
	alarmEtcdFull     alarmProblem = "etcd_full"
	alarmNoSession    alarmProblem = "no_session"
)

// alarmWords are the words for problems.
var alarmWords = map[alarmProblem]string{
	alarmEtcdSilent:   "etcd does not answer",
	alarmEtcdRestored: "etcd was restored from an older snapshot",
	alarmEtcdFull:     "etcd accepts no writes",
	alarmNoSession:    "the node has no session in etcd",
	alarmNoLeader:     "the cluster has no leader",
}

// alarmFacts are what a check has found. Without a problem, Problem is empty.
type alarmFacts struct {
	Problem alarmProblem
	Cause   string // an error, or ""
}

// alarmRun is a run of the alarm command.
type alarmRun struct {
	alarmFacts
	Ended   bool      // the problem is over
	Again   bool      // the problem was already reported
	Since   time.Time // when the node last had no problem
	EndedAt time.Time
}

// alarmState decides when the alarm command runs.
type alarmState struct {
	lastHealthy time.Time  // when a check last found no problem, before the present one
	reported    bool       // the command has run for the present problem
	lastRun     alarmFacts // what the command last ran for; the cause may have changed since
	endedSince  time.Time  // since when a reported problem is over; zero: it is not

	next    time.Time     // when the command may run next for a problem
	nextEnd time.Time     // when it may run next for the end of one
	retry   time.Duration // how long the last wait after a failed run was; 0: the last run has succeeded
}

// step notes what a check has found, and returns the run that is due, if any.
func (s *alarmState) step(now time.Time, found alarmFacts) (run alarmRun, due bool) {
	switch {
	case found.Problem != "":
		s.endedSince = time.Time{}
		return alarmRun{alarmFacts: found, Again: s.reported, Since: s.lastHealthy}, now.Sub(s.lastHealthy) >= alarmAfter && !now.Before(s.next)
	case !s.reported:
		s.lastHealthy = now
		return alarmRun{}, false
	case s.endedSince.IsZero(): // a problem that comes back soon has not ended
		s.endedSince, s.nextEnd = now, now.Add(alarmAfter)
	}

	return alarmRun{alarmFacts: s.lastRun, Ended: true, Since: s.lastHealthy, EndedAt: s.endedSince}, !now.Before(s.nextEnd)
}

// noteRun notes how a run ended. One that fails is repeated, because the network may fail together with etcd.
func (s *alarmState) noteRun(now time.Time, run alarmRun, err error) {
	wait := alarmRepeat
	if s.retry = min(max(2*s.retry, alarmRetry), alarmRepeat); err == nil {
		s.retry = 0
	} else {
		wait = s.retry
	}

	switch {
	case !run.Ended:
		s.reported, s.lastRun, s.next = true, run.alarmFacts, now.Add(wait)
	case err != nil:
		s.nextEnd = now.Add(wait)
	default:
		s.reported, s.lastHealthy, s.endedSince = false, now, time.Time{}
	}
}

// env returns the variables of a run on a node of a cluster.
func (r *alarmRun) env(node, cluster string) []string {
	word, action, when := "PROBLEM", "trigger", ", since "+formatSecond(r.Since)
	switch {
	case r.Ended:
		word, action, when = "RESOLVED", "resolve", ", from "+formatSecond(r.Since)+" to "+formatSecond(r.EndedAt)
	case r.Again:
		word = "STILL PROBLEM"
	}

	text := fmt.Sprintf("%s node %s: %s%s", word, node, alarmWords[r.Problem], when)
	if !r.Ended && r.Cause != "" {
		text += ": " + alert.Shorten(r.Cause, alarmText)
	}

	return []string{
		"CARILLON_ALARM_ACTION=" + action, "CARILLON_ALARM_PROBLEM=" + string(r.Problem), "CARILLON_ALARM_SINCE=" + formatSecond(r.Since),
		"CARILLON_ALARM_TEXT=" + text, "CARILLON_ALARM_NODE=" + node, "CARILLON_ALARM_CLUSTER=" + cluster,
	}
}

// formatSecond formats a time in UTC.
func formatSecond(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// alarmCommand runs the command while a node can neither fire nor send messages about alerts, and when that is over. It works without
// etcd, and from before the node has reached etcd. A nil *alarmCommand does nothing. Its methods may be called from any goroutine.
type alarmCommand struct {
	node string
	now  func() time.Time
	run  func(ctx context.Context, env []string, orphans *proctree.Orphans) (output []byte, err error)
	log  *zap.Logger

	mu      sync.Mutex // held during a check, so that what it uses is not closed
	cluster string
	start   alarmFacts                           // what a starting node waits for
	check   func(ctx context.Context) alarmFacts // finds the problem of a node that has started; nil: none has
	orphans *proctree.Orphans
}

// newAlarmCommand returns the alarm command of the settings, or nil if there is none.
func newAlarmCommand(cfg *Config, now func() time.Time, log *zap.Logger) *alarmCommand {
	if cfg.AlarmCommand == "" {
		return nil
	}
	cmd := &process.Command{Program: cfg.AlarmCommand, DefaultUser: cfg.taskUser(), Timeout: alarmTimeout}

	return &alarmCommand{node: cfg.Name, now: now, run: cmd.Run, log: log.Named("alarm")}
}

// noteStart notes what a starting node waits for.
func (a *alarmCommand) noteStart(facts alarmFacts) {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.start = facts
	}
}

// noteMembers notes for which members of etcd a starting node waits. nil means that the wait is over.
func (a *alarmCommand) noteMembers(missing []string) {
	switch {
	case missing == nil:
		a.noteStart(alarmFacts{})
	case len(missing) == 0:
		a.noteStart(alarmFacts{alarmEtcdSilent, "its members do not agree yet"})
	default:
		a.noteStart(alarmFacts{alarmEtcdSilent, "it waits for its other members: " + strings.Join(missing, ", ")})
	}
}

// watchNode makes the alarm check a node that has reached etcd.
func (a *alarmCommand) watchNode(n *Node) {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cluster, a.check, a.orphans = n.cluster.ID, n.findAlarm, n.orphans
	}
}

// forgetNode ends watchNode. When it returns, no check uses the node.
func (a *alarmCommand) forgetNode() {
	if a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.check, a.orphans, a.start = nil, nil, alarmFacts{}
	}
}

// findFacts checks the node.
func (a *alarmCommand) findFacts(ctx context.Context) (facts alarmFacts, cluster string, orphans *proctree.Orphans) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.check == nil {
		return a.start, a.cluster, a.orphans
	}

	return a.check(ctx), a.cluster, a.orphans
}

// serve checks the node every alarmEvery until ctx ends, and runs the command.
func (a *alarmCommand) serve(ctx context.Context) {
	if a == nil {
		return
	}

	state := alarmState{lastHealthy: a.now()}
	for {
		facts, cluster, orphans := a.findFacts(ctx)
		if run, due := state.step(a.now(), facts); due && ctx.Err() == nil {
			output, err := a.run(ctx, run.env(a.node, cluster), orphans)
			state.noteRun(a.now(), run, err)

			log := a.log.With(zap.String("problem", string(run.Problem)), zap.Time("since", run.Since), zap.Bool("ended", run.Ended))
			if err != nil {
				log.Error("the alarm command failed", zap.String("output", alert.Shorten(string(output), alarmText)), zap.Error(err))
			} else {
				log.Warn("ran the alarm command")
			}
		}

		if !clock.Sleep(ctx, alarmEvery) {
			return
		}
	}
}

// startAlarm serves an alarm command until ctx ends or the returned function is called, which waits for its end.
func startAlarm(ctx context.Context, a *alarmCommand) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.serve(ctx)
	}()

	return func() {
		cancel()
		<-ended
	}
}

// findAlarm returns why the node can neither fire nor send messages about alerts.
func (n *Node) findAlarm(ctx context.Context) alarmFacts {
	ctx, cancel := context.WithTimeout(ctx, alarmCheckTimeout)
	defer cancel()

	leader, err := n.store.CurrentLeader(ctx)
	written := n.presence.writeError()
	_, present := n.presence.Session()

	switch {
	case err != nil:
		return alarmFacts{alarmEtcdSilent, err.Error()}
	case n.eligibility.errorFor(task.IneligibleRestored) != nil:
		return alarmFacts{alarmEtcdRestored, "decide how to continue, with carillon cluster recover or another snapshot"}
	case kv.NoSpace(written):
		return alarmFacts{alarmEtcdFull, written.Error()}
	case !present && written != nil:
		return alarmFacts{alarmNoSession, written.Error()}
	case !present:
		return alarmFacts{Problem: alarmNoSession}
	case leader == "":
		return alarmFacts{Problem: alarmNoLeader}
	}

	return alarmFacts{}
}

// startingAlarm returns what a starting node waits for, after an error of etcd.
func startingAlarm(err error) alarmFacts {
	if kv.NoSpace(err) {
		return alarmFacts{alarmEtcdFull, err.Error()}
	}
	return alarmFacts{alarmEtcdSilent, err.Error()}
}
