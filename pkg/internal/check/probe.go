package check

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// probeLine is a line of a probe log, to which test tasks append whatever the
// scheduler believes: "START|BEAT|END run attempt token time pid". BEAT, which
// need not be, says that the process lives.
type probeLine struct {
	end     bool
	beat    bool
	run     string
	attempt int
	token   int64
	at      int64 // in ms; 0: the log does not tell
	pid     string
	line    int
}

// CheckProbeLog judges what really ran. Of the log alone: each attempt starts at
// most once (G9), each end has a start (G10), tokens grow from attempt to attempt
// (G11). With the events of the same time (nil: none) also: each start has an
// inbox record with its token (G10); of tasks that are against overlap the
// tokens grow from start to start (G11) and no run starts while another goes on
// (G8, seen only if that one lived to write its END); an attempt after a lost
// one is there only if the policy wants it (G9); and of an attempt that had been
// declared lost no process starts (G9), nor lives on (G17): a line of its own below the START of a token that is younger than the
// loss proves that it did. Where the log's times are milliseconds of a wall clock,
// no first attempt of a tick starts long after its start deadline (G22).
//
// Run ids hold a part of the task's uid only, so that those of two tasks may be
// equal at one tick. The events tell them apart; the log alone may not.
//
// The order of the lines is what counts, not their times: all probes append to
// one file on one host. A last line without an end, cut off by a kill, is left
// out.
func CheckProbeLog(rd io.Reader, keys record.Keys, events []Event) []Violation {
	lines, violations := readProbes(rd)
	c := probeChecker{
		violations: violations,
		intents:    readIntents(keys, events),
		hasEvents:  events != nil,
		taskOfRun:  map[string]string{},
		started:    map[attemptID][]probeLine{},
		ended:      map[attemptID][]probeLine{},
		last:       map[string]probeLine{},
		newest:     map[string]intent{},
		lost:       lostAttempts(keys, events),
	}

	for _, same := range c.intents {
		c.taskOfRun[same[0].ID] = same[0].name
	}

	for _, p := range lines {
		c.checkSignOfLife(p)

		switch {
		case p.end:
			c.checkEnd(p)
		case !p.beat:
			c.checkStart(p)
		}
	}

	c.checkOverlaps(lines)

	return c.violations
}

// intent is an inbox record by its token.
type intent struct {
	task.Assigned
	name string
	// activated is the token of the run's first attempt, or the revision at which the
	// parent of a part began; policy is what was in force then. Zero if the events do
	// not tell.
	activated int64
	overlapPolicy
}

// overlapPolicy is what an entry says of runs beside each other.
type overlapPolicy struct {
	overlap   string
	maxActive int
}

// forbidsOverlap reports whether, when it was dispatched, no other run of the task may
// have been active.
func (in intent) forbidsOverlap() bool { return in.overlap != "" && in.overlap != task.OverlapAllow }

// incarnation tells a task from those that bore its name before: to be created again
// makes another task of it, which the runs of the former one do not concern.
func (in intent) incarnation() string { return in.name + "/" + in.UID }

// laterActivated is the intent whose run became active last. By its policy the two may be
// active together, or not.
func laterActivated(a, b intent) intent {
	if b.activated > a.activated {
		return b
	}
	return a
}

type probeChecker struct {
	violations     []Violation
	intents        map[attemptID][]intent // several: of tasks whose run ids are equal
	hasEvents      bool
	taskOfRun      map[string]string // a task for each run id
	started, ended map[attemptID][]probeLine
	last           map[string]probeLine // by run: what started last
	newest         map[string]intent    // per incarnation: what has started with the highest token
	lost           map[attemptID]int64  // attempts that were declared lost: when
	highestStarted int64                // the highest token that has started: etcd was there by then
}

// attemptID is an attempt as a log knows it.
type attemptID struct {
	token int64
	run   string
}

func (p probeLine) attemptID() attemptID { return attemptID{p.token, p.run} }

func (c *probeChecker) addViolation(p probeLine, promise, format string, args ...any) {
	v := Violation{Promise: promise, Message: fmt.Sprintf("line %d: ", p.line) + fmt.Sprintf(format, args...)}
	if in, ok := c.intentOf(p); ok {
		v.Task, v.Revision = in.name, p.token
	}
	c.violations = append(c.violations, v)
}

// intentOf is the inbox record of an attempt, if there is just one.
func (c *probeChecker) intentOf(p probeLine) (intent, bool) {
	all := c.intents[p.attemptID()]
	if len(all) != 1 {
		return intent{}, false
	}
	return all[0], true
}

// runKey tells the runs of the log apart.
func (c *probeChecker) runKey(p probeLine) string {
	if in, ok := c.intentOf(p); ok {
		return in.name + "/" + p.run
	}
	return c.taskOfRun[p.run] + "/" + p.run
}

func (c *probeChecker) checkStart(p probeLine) {
	in, ok := c.intentOf(p)
	allowed, before := len(c.intents[p.attemptID()]), c.started[p.attemptID()]
	if c.hasEvents && allowed == 0 {
		c.addViolation(p, "G10", "run %s, attempt %d, started with token %d, which no inbox record had", p.run, p.attempt, p.token)
	}

	if len(before) >= max(allowed, 1) {
		c.addViolation(p, "G9", "run %s, attempt %d, started again; it had started in line %d, as process %s", p.run, p.attempt, before[0].line, before[0].pid)
	}

	if last, again := c.last[c.runKey(p)]; again && last.token != p.token && allowed < 2 {
		c.checkSuccessor(p, last)
	}

	if ok {
		c.checkStartDeadline(p, in)
		newest := c.newest[in.incarnation()]
		if p.token < newest.Token && laterActivated(newest, in).forbidsOverlap() && !task.Siblings(newest.ID, in.ID) {
			c.addViolation(p, "G11", "token %d starts after token %d of the same task", p.token, newest.Token)
		}

		if in.Token > newest.Token {
			c.newest[in.incarnation()] = in
		}
	}

	c.started[p.attemptID()] = append(before, p)
	c.last[c.runKey(p)] = p
}

// checkStartDeadline judges when the first attempt of a tick started (G22): by the log's
// clock, which is not that of the node that decided it.
func (c *probeChecker) checkStartDeadline(p probeLine, in intent) {
	const slack = 5000
	if p.at != 0 && p.attempt <= 1 && isTickTrigger(in.Trigger) && !in.StartBefore.IsZero() && p.at > unixMS(in.StartBefore)+slack {
		c.addViolation(p, "G22", "run %s started at %s, and had to before %s", p.run, formatTime(timeOfMS(p.at)), formatTime(in.StartBefore.Time))
	}
}

// checkSuccessor judges an attempt that follows another of its run.
func (c *probeChecker) checkSuccessor(p, before probeLine) {
	if p.token < before.token {
		c.addViolation(p, "G11", "run %s: token %d starts after token %d", p.run, p.token, before.token)
	}

	if p.attempt <= before.attempt {
		c.addViolation(p, "G9", "run %s: attempt %d started in line %d and again here", p.run, p.attempt, before.line)
	}

	in, ok := c.intentOf(p)
	was, had := c.intentOf(before)
	if !ok || !had {
		return
	}

	for _, a := range in.Attempts {
		if a.Token == before.token && a.State == task.Lost && !slices.Contains(was.Retry.On, task.Lost) {
			c.addViolation(p, "G9", "run %s: attempt %d was lost and has a successor, which its policy does not want", p.run, before.attempt)
		}
	}
}

func (c *probeChecker) checkEnd(p probeLine) {
	before := c.ended[p.attemptID()]

	if len(c.started[p.attemptID()]) == 0 {
		c.addViolation(p, "G10", "run %s, attempt %d, ends with token %d, which never started", p.run, p.attempt, p.token)
	}

	if len(before) >= max(len(c.intents[p.attemptID()]), 1) {
		c.addViolation(p, "G9", "run %s, attempt %d, ends again; it had ended in line %d", p.run, p.attempt, before[0].line)
	}

	c.ended[p.attemptID()] = append(before, p)
}

// checkSignOfLife judges a sign of life of an attempt that had been declared lost: the
// line stands below a token that is younger than the loss.
func (c *probeChecker) checkSignOfLife(p probeLine) {
	_, ok := c.intentOf(p)
	if rev, lost := c.lost[p.attemptID()]; ok && lost && c.highestStarted > rev {
		switch {
		case !p.end && !p.beat:
			c.addViolation(p, "G9", "run %s, attempt %d, started after it was declared lost at revision %d", p.run, p.attempt, rev)
		default:
			c.addViolation(p, "G17", "run %s, attempt %d, as process %s, lived on after it was declared lost at revision %d",
				p.run, p.attempt, p.pid, rev)
		}
	}

	if ok && !p.end && !p.beat {
		c.highestStarted = max(c.highestStarted, p.token)
	}
}

// checkOverlaps looks for starts between the start and the end of another run of the
// same task, where the policy was against it when the later of the two was
// dispatched first.
func (c *probeChecker) checkOverlaps(lines []probeLine) {
	open := map[string]map[string]probeLine{} // by task and run: what has started and will write its END
	for _, p := range lines {
		in, ok := c.intentOf(p)
		if !ok || p.beat {
			continue
		}

		runs := open[in.incarnation()]
		if runs == nil {
			runs = map[string]probeLine{}
			open[in.incarnation()] = runs
		}

		if p.end {
			if runs[p.run].token == p.token {
				delete(runs, p.run)
			}
			continue
		}

		for _, run := range slices.Sorted(maps.Keys(runs)) {
			other := runs[run]
			goesOn, _ := c.intentOf(other)
			if run != p.run && !task.Siblings(run, p.run) && laterActivated(goesOn, in).forbidsOverlap() {
				c.addViolation(p, "G8", "run %s starts while run %s of the same task goes on, until line %d", p.run, run, c.ended[other.attemptID()][0].line)
			}
		}

		if len(c.ended[p.attemptID()]) > 0 {
			runs[p.run] = p
		}
	}
}

// AttemptID is an attempt of a run, and its token.
type AttemptID struct {
	Task  string // namespace/name
	Run   string
	Token int64
}

// Activation says since when a run is active, and by which policy it became so.
type Activation struct {
	Revision  int64
	Overlap   string // in force then; "" if the events do not tell
	MaxActive int    // likewise; 0: no limit
}

// Activations says of each attempt in a history how its run became active: by its dispatch, or by that of an earlier
// attempt, since a run stays active while it is waiting for its next attempt.
func Activations(keys record.Keys, events []Event) map[AttemptID]Activation {
	all := map[AttemptID]Activation{}
	for id, same := range readIntents(keys, events) {
		for _, in := range same {
			all[AttemptID{in.name, id.run, id.token}] = Activation{in.activated, in.overlap, in.maxActive}
		}
	}

	return all
}

// readIntents collects the inbox records of a history.
func readIntents(keys record.Keys, events []Event) map[attemptID][]intent {
	all := map[attemptID][]intent{}
	inForce := map[record.Ref]overlapPolicy{}

	first := map[runRef]intent{}
	for at := 0; at < len(events); {
		end := at + 1
		for end < len(events) && events[end].Revision == events[at].Revision && events[end].Listed == events[at].Listed {
			end++
		}

		if events[at].Listed { // what was dispatched before goes by what is there
			applyOverlapPolicies(keys, events[at:end], inForce)
		}

		for _, ev := range events[at:end] {
			if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == record.KindQueued && !ev.Deleted {
				run := runRef{k.Ref, k.Run}
				w, err := record.DecodeWaiting(k, ev.Value)
				_, known := first[run]
				switch {
				case err != nil:
				case w.UnderWay() && !known: // its parts are active with it
					first[run] = intent{activated: ev.ModRevision, overlapPolicy: inForce[k.Ref]}
				case !w.UnderWay() && len(w.Attempts) == 0: // handed back before it started: its next dispatch makes it active again
					delete(first, run)
				}
			}

			k, ok := keys.ParseRun(ev.Key)
			if !ok || ev.Deleted || (ev.CreateRevision != ev.ModRevision && !ev.Listed) {
				continue
			}

			a, err := record.DecodeAssigned(k, ev.CreateRevision, ev.Value)
			if err != nil {
				continue
			}

			run := runRef{k.Ref, k.Run}
			if parent, _, part := task.ParentOf(k.Run); part {
				run.id = parent
			}

			if _, known := first[run]; !known {
				first[run] = intent{activated: ev.CreateRevision, overlapPolicy: inForce[k.Ref]}
			}

			in := first[run]
			in.Assigned, in.name = a, k.Ref.String()
			id := attemptID{ev.CreateRevision, k.Run}
			all[id] = append(all[id], in)
		}

		applyOverlapPolicies(keys, events[at:end], inForce)
		at = end
	}

	return all
}

// applyOverlapPolicies takes what the entries say of overlap from their next revision on.
func applyOverlapPolicies(keys record.Keys, events []Event, inForce map[record.Ref]overlapPolicy) {
	for _, ev := range events {
		if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == record.KindEntry && !ev.Deleted {
			if e, err := record.DecodeEntry(ev.Value); err == nil {
				inForce[k.Ref] = overlapPolicy{e.Overlap, e.MaxActive}
			}
		}
	}
}

func readProbes(rd io.Reader) ([]probeLine, []Violation) {
	var lines []probeLine
	var violations []Violation
	in := bufio.NewReader(rd)

	for n := 1; ; n++ {
		text, err := in.ReadString('\n')
		if err != nil {
			return lines, violations // what has no newline was cut off
		}

		p, ok := parseProbe(strings.Fields(text))
		if !ok {
			violations = append(violations, Violation{Promise: "form", Message: fmt.Sprintf("line %d: not a probe: %s", n, task.Quote(text))})
			continue
		}

		p.line = n
		lines = append(lines, p)
	}
}

func parseProbe(words []string) (probeLine, bool) {
	if len(words) != 6 || (words[0] != "START" && words[0] != "END" && words[0] != "BEAT") {
		return probeLine{}, false
	}

	attempt, err1 := strconv.Atoi(words[2])
	token, err2 := strconv.ParseInt(words[3], 10, 64)

	at, err := strconv.ParseInt(words[4], 10, 64)
	if year2000 := int64(946_684_800_000); err != nil || at < year2000 {
		at = 0 // of a clock of another kind
	}

	return probeLine{end: words[0] == "END", beat: words[0] == "BEAT", run: words[1], attempt: attempt, token: token, at: at, pid: words[5]}, err1 == nil && err2 == nil
}
