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

// probeLine is a line of a probe log. Test tasks append to it directly, independently of what the scheduler
// believes: "START|BEAT|END|ASK run attempt token time pid". BEAT is optional and shows that the process is alive. For an
// HTTP attempt, its target writes the lines: START when the request arrives, END when it has been answered, and ASK before
// that if the answer asks to wait and to try again.
type probeLine struct {
	end     bool   // an END line
	beat    bool   // a BEAT line
	ask     bool   // an ASK line
	run     string // the id of the run
	attempt int    // 1 is the first attempt
	token   int64  // the attempt's fencing token
	at      int64  // in ms since 1970; 0 if the log has no wall clock
	pid     string // the process that wrote the line
	line    int    // its number in the log, from 1
}

// CheckProbeLog judges which processes really ran. From the log alone it checks:
//
//   - each attempt starts at most once (G9)
//   - each END has a START (G10)
//   - tokens increase from attempt to attempt of a run (G11)
//
// With the events of the same period (nil: none) it also checks:
//
//   - each START has an inbox record with its token (G10)
//   - where the policy forbids overlap, tokens increase from START to START of a task (G11), and no run starts
//     between the START and the END of another one (G8); a run that was killed has no END and is not judged
//   - an attempt follows a lost one only if the retry policy allows it (G9)
//   - no attempt starts after it was declared lost (G9), and none is alive then (G17): the proof is a line of it
//     below the START of a token that is newer than the loss
//   - no attempt that started is recorded as not sent, unless its target asked to wait (G9)
//   - no first attempt of a tick starts long after its start deadline, if the log has wall-clock times (G22)
//
// A run id contains only a part of the task's uid, so two tasks can have equal run ids at one tick. The events tell
// them apart. The log alone cannot.
//
// The order of the lines counts, not their times: all probes append to one file on one host. A last line without a
// newline was cut off by a kill and is ignored.
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
		unsent:     unsentAttempts(keys, events),
		asked:      map[attemptID]bool{},
	}

	// For runs of unknown tasks, one task for each run id is enough to keep its attempts together.
	for _, same := range c.intents {
		c.taskOfRun[same[0].ID] = same[0].name
	}

	// checkSignOfLife comes first: it needs the tokens that started before this line.
	for _, p := range lines {
		c.checkSignOfLife(p)

		switch {
		case p.end:
			c.checkEnd(p)
		case p.ask:
			c.asked[p.attemptID()] = true
		case !p.beat:
			c.checkStart(p)
		}
	}

	c.checkOverlaps(lines)
	c.checkSent(lines)

	return c.violations
}

// intent is an inbox record, identified by its token.
type intent struct {
	task.Assigned
	name string // namespace/name of the task
	// activated is the revision at which the run became active: the token of its first attempt, or for a part the
	// revision at which its parent got its parts. overlapPolicy is the policy in force at that revision. Both are
	// zero if the events do not show it.
	activated int64
	overlapPolicy
}

// overlapPolicy is the part of an entry that determines which runs may be active together.
type overlapPolicy struct {
	overlap   string // skip, queue, replace or allow; "": not known
	maxActive int    // with allow: how many runs may be active; 0: no limit
}

// forbidsOverlap reports whether no other run of the task was allowed to be active when the run became active.
func (in intent) forbidsOverlap() bool { return in.overlap != "" && in.overlap != task.OverlapAllow }

// incarnation identifies the task. A task that is deleted and created again under the same name is another one.
func (in intent) incarnation() string { return in.name + "/" + in.UID }

// laterActivated returns the intent whose run became active later. Its policy determines whether the two may be
// active together.
func laterActivated(a, b intent) intent {
	if b.activated > a.activated {
		return b
	}
	return a
}

// probeChecker holds the state of one pass over a probe log.
type probeChecker struct {
	violations     []Violation
	intents        map[attemptID][]intent    // several records: tasks with equal run ids
	hasEvents      bool                      // the events of the same period were passed; otherwise starts without an inbox record are not reported
	taskOfRun      map[string]string         // one task for each run id
	started, ended map[attemptID][]probeLine // all START and END lines of an attempt
	last           map[string]probeLine      // by run: its latest START
	newest         map[string]intent         // by incarnation: the started attempt with the highest token
	lost           map[attemptID]int64       // the revision at which an attempt was declared lost
	unsent         map[attemptID]bool        // attempts that are recorded as not sent
	asked          map[attemptID]bool        // attempts whose target asked to wait
	highestStarted int64                     // the highest token that has started; etcd had reached that revision by then
}

// attemptID identifies an attempt in a log, which does not contain the name of the task.
type attemptID struct {
	token int64
	run   string
}

func (p probeLine) attemptID() attemptID { return attemptID{p.token, p.run} }

// addViolation adds a violation about a line. It names the task if the events identify it.
func (c *probeChecker) addViolation(p probeLine, promise, format string, args ...any) {
	v := Violation{Promise: promise, Message: fmt.Sprintf("line %d: ", p.line) + fmt.Sprintf(format, args...)}
	if in, ok := c.intentOf(p); ok {
		v.Task, v.Revision = in.name, p.token
	}
	c.violations = append(c.violations, v)
}

// intentOf returns the inbox record of an attempt. It returns false if there is none, or if several tasks have one.
func (c *probeChecker) intentOf(p probeLine) (intent, bool) {
	all := c.intents[p.attemptID()]
	if len(all) != 1 {
		return intent{}, false
	}
	return all[0], true
}

// runKey identifies a run across the log, by its task if that is known.
func (c *probeChecker) runKey(p probeLine) string {
	if in, ok := c.intentOf(p); ok {
		return in.name + "/" + p.run
	}
	return c.taskOfRun[p.run] + "/" + p.run
}

// checkStart judges a START line.
func (c *probeChecker) checkStart(p probeLine) {
	in, ok := c.intentOf(p)
	allowed, before := len(c.intents[p.attemptID()]), c.started[p.attemptID()]
	if c.hasEvents && allowed == 0 {
		c.addViolation(p, "G10", "run %s, attempt %d, started with token %d, which no inbox record had", p.run, p.attempt, p.token)
	}

	// Attempts of several tasks can have the same run id and token, so as many starts are allowed as there are
	// records.
	if len(before) >= max(allowed, 1) {
		c.addViolation(p, "G9", "run %s, attempt %d, started again; it had started in line %d, as process %s", p.run, p.attempt, before[0].line, before[0].pid)
	}

	if last, again := c.last[c.runKey(p)]; again && last.token != p.token && allowed < 2 {
		c.checkSuccessor(p, last)
	}

	if ok {
		c.checkStartDeadline(p, in)
		newest := c.newest[in.incarnation()]
		if p.token < newest.Token && laterActivated(newest, in).forbidsOverlap() && !Siblings(newest.ID, in.ID) {
			c.addViolation(p, "G11", "token %d starts after token %d of the same task", p.token, newest.Token)
		}

		if in.Token > newest.Token {
			c.newest[in.incarnation()] = in
		}
	}

	c.started[p.attemptID()] = append(before, p)
	c.last[c.runKey(p)] = p
}

// checkStartDeadline checks that the first attempt of a tick starts before its deadline (G22). The slack of 5 s
// covers the fork, the program's start, and the difference between the log's clock and the owner's.
func (c *probeChecker) checkStartDeadline(p probeLine, in intent) {
	const slack = 5000
	if p.at != 0 && in.CountedAttempt() <= 1 && isTickTrigger(in.Trigger) && !in.StartBefore.IsZero() && p.at > unixMS(in.StartBefore)+slack {
		c.addViolation(p, "G22", "run %s started at %s, after its deadline %s", p.run, formatTime(timeOfMS(p.at)), formatTime(in.StartBefore.Time))
	}
}

// checkSuccessor judges an attempt that starts after another one of its run.
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
			c.addViolation(p, "G9", "run %s: attempt %d was lost and was retried, which its policy does not allow", p.run, before.attempt)
		}
	}
}

// checkEnd judges an END line.
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

// checkSent finds attempts that are recorded as not sent although their requests had arrived. Such an attempt is free, and
// is tried again even if the request must not be repeated.
func (c *probeChecker) checkSent(lines []probeLine) {
	for _, p := range lines {
		if _, ok := c.intentOf(p); ok && p.isStart() && c.unsent[p.attemptID()] && !c.asked[p.attemptID()] {
			c.addViolation(p, "G9", "the request of run %s, attempt %d, arrived, but is recorded as not sent", p.run, p.attempt)
		}
	}
}

// isStart reports whether the line is a START.
func (p probeLine) isStart() bool { return !p.end && !p.beat && !p.ask }

// checkSignOfLife checks that an attempt shows no sign of life after it was declared lost. If an attempt with a
// token newer than the loss has already started in the log, the line was written after the loss.
func (c *probeChecker) checkSignOfLife(p probeLine) {
	_, ok := c.intentOf(p)
	if rev, lost := c.lost[p.attemptID()]; ok && lost && c.highestStarted > rev {
		switch {
		case p.isStart():
			c.addViolation(p, "G9", "run %s, attempt %d, started after it was declared lost at revision %d", p.run, p.attempt, rev)
		default:
			c.addViolation(p, "G17", "run %s, attempt %d, as process %s, still ran after it was declared lost at revision %d",
				p.run, p.attempt, p.pid, rev)
		}
	}

	if ok && p.isStart() {
		c.highestStarted = max(c.highestStarted, p.token)
	}
}

// checkOverlaps finds runs that start between the START and the END of another run of the same task (G8). The
// policy of the run that became active later decides whether that is allowed.
func (c *probeChecker) checkOverlaps(lines []probeLine) {
	open := map[string]map[string]probeLine{} // by task and run: STARTs whose END comes later in the log
	for _, p := range lines {
		in, ok := c.intentOf(p)
		if !ok || p.beat || p.ask {
			continue
		}

		runs := open[in.incarnation()]
		if runs == nil {
			runs = map[string]probeLine{}
			open[in.incarnation()] = runs
		}

		// END and START of a run may belong to different attempts of it.
		if p.end {
			if runs[p.run].token == p.token {
				delete(runs, p.run)
			}
			continue
		}

		// Every other run of the task that has not ended here overlaps with this one. Parts of one run may.
		for _, run := range slices.Sorted(maps.Keys(runs)) {
			other := runs[run]
			goesOn, _ := c.intentOf(other)
			if run != p.run && !Siblings(run, p.run) && laterActivated(goesOn, in).forbidsOverlap() {
				c.addViolation(p, "G8", "run %s starts while run %s of the same task runs, until line %d", p.run, run, c.ended[other.attemptID()][0].line)
			}
		}

		// An attempt without an END was killed at an unknown time, so it does not prove an overlap.
		if len(c.ended[p.attemptID()]) > 0 {
			runs[p.run] = p
		}
	}
}

// Siblings reports whether two ids belong to parts of the same run.
func Siblings(a, b string) bool {
	of, _, is := task.ParentOf(a)
	other, _, too := task.ParentOf(b)
	return is && too && of == other
}

// AttemptID identifies an attempt of a run by its token.
type AttemptID struct {
	Task  string // namespace/name
	Run   string
	Token int64
}

// Activation states since when a run is active, and under which policy it became active.
type Activation struct {
	Revision  int64  // of the dispatch that made the run active
	Overlap   string // in force at that revision; "" if the events do not show it
	MaxActive int    // in force at that revision; 0: no limit
}

// Activations returns for each attempt in a history how its run became active: by the attempt's dispatch, or by
// that of an earlier attempt, because a run stays active while it waits for its next attempt.
func Activations(keys record.Keys, events []Event) map[AttemptID]Activation {
	all := map[AttemptID]Activation{}
	for id, same := range readIntents(keys, events) {
		for _, in := range same {
			all[AttemptID{in.name, id.run, id.token}] = Activation{in.activated, in.overlap, in.maxActive}
		}
	}

	return all
}

// readIntents collects the inbox records of a history, with the policy under which each run became active. Within a
// revision, new records count under the policy before that revision: an edit and a dispatch cannot share a
// revision, because the dispatch compares the entry.
func readIntents(keys record.Keys, events []Event) map[attemptID][]intent {
	all := map[attemptID][]intent{}
	inForce := map[record.Ref]overlapPolicy{}

	// first holds how each run became active.
	first := map[runRef]intent{}
	for at := 0; at < len(events); {
		end := at + 1
		for end < len(events) && events[end].Revision == events[at].Revision && events[end].Listed == events[at].Listed {
			end++
		}

		// Runs of the first list may have been dispatched under a policy that the history does not show. Use the
		// one in force.
		if events[at].Listed {
			applyOverlapPolicies(keys, events[at:end], inForce)
		}

		for _, ev := range events[at:end] {
			if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == record.KindQueued && !ev.Deleted {
				run := runRef{k.Ref, k.Run}
				w, err := record.DecodeWaiting(k, ev.Value)
				_, known := first[run]
				switch {
				case err != nil:
				case w.UnderWay() && !known: // parts become active with their parent
					first[run] = intent{activated: ev.ModRevision, overlapPolicy: inForce[k.Ref]}
				case !w.UnderWay() && len(w.Attempts)+w.UnsentCount() == 0: // handed back before it started: its next dispatch activates it again
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

// applyOverlapPolicies applies the overlap policies of the entries that the events write.
func applyOverlapPolicies(keys record.Keys, events []Event, inForce map[record.Ref]overlapPolicy) {
	for _, ev := range events {
		if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == record.KindEntry && !ev.Deleted {
			if e, err := record.DecodeEntry(ev.Value); err == nil {
				inForce[k.Ref] = overlapPolicy{e.Overlap, e.MaxActive}
			}
		}
	}
}

// readProbes parses a log. It reports lines that are not probe lines, and leaves them out.
func readProbes(rd io.Reader) ([]probeLine, []Violation) {
	var lines []probeLine
	var violations []Violation
	in := bufio.NewReader(rd)

	for n := 1; ; n++ {
		text, err := in.ReadString('\n')
		if err != nil {
			return lines, violations // a last line without a newline was cut off
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

// parseProbe parses the fields of a line.
func parseProbe(words []string) (probeLine, bool) {
	if len(words) != 6 || !slices.Contains([]string{"START", "END", "BEAT", "ASK"}, words[0]) {
		return probeLine{}, false
	}

	attempt, err1 := strconv.Atoi(words[2])
	token, err2 := strconv.ParseInt(words[3], 10, 64)

	at, err := strconv.ParseInt(words[4], 10, 64)
	if year2000 := int64(946_684_800_000); err != nil || at < year2000 {
		at = 0 // a relative clock
	}

	return probeLine{end: words[0] == "END", beat: words[0] == "BEAT", ask: words[0] == "ASK", run: words[1], attempt: attempt, token: token, at: at, pid: words[5]}, err1 == nil && err2 == nil
}

// lostAttempts is Losses for a log, which does not contain the names of tasks.
func lostAttempts(keys record.Keys, events []Event) map[attemptID]int64 {
	lost := map[attemptID]int64{}
	for id, rev := range Losses(keys, events) {
		lost[attemptID{id.Token, id.Run}] = rev
	}

	return lost
}

// Losses returns at which revision each attempt was declared lost. A history record and a queue record can both state this
// of an attempt. The earliest counts.
func Losses(keys record.Keys, events []Event) map[AttemptID]int64 {
	lost := map[AttemptID]int64{}
	note := func(ref record.Ref, run string, token, rev int64) {
		id := AttemptID{ref.String(), run, token}
		if before, known := lost[id]; token != 0 && (!known || rev < before) {
			lost[id] = rev
		}
	}

	// Decoding is expensive, so first search the value for the state.
	for _, ev := range events {
		k, ok := keys.ParseShard(ev.Key)
		if !ok || ev.Deleted || k.Run == "" || k.Late || !strings.Contains(string(ev.Value), string(task.Lost)) {
			continue
		}

		var r task.Run
		if k.Kind == record.KindEnded {
			r, _ = record.DecodeEnded(k, ev.Value)
		} else {
			w, _ := record.DecodeWaiting(k, ev.Value)
			r = w.Run
		}

		if r.State == task.Lost {
			note(k.Ref, k.Run, r.Token, ev.ModRevision)
		}

		for _, a := range r.Attempts {
			if a.State == task.Lost {
				note(k.Ref, k.Run, a.Token, ev.ModRevision)
			}
		}
	}

	return lost
}

// unsentAttempts returns the attempts that are recorded as not sent: by the queue record that counts them, or by the final
// record of their run.
func unsentAttempts(keys record.Keys, events []Event) map[attemptID]bool {
	unsent := map[attemptID]bool{}
	last := map[runRef]task.Assigned{} // the latest inbox record of a run

	for _, ev := range events {
		if ev.Deleted {
			continue
		}

		if k, ok := keys.ParseRun(ev.Key); ok {
			if a, err := record.DecodeAssigned(k, ev.CreateRevision, ev.Value); err == nil && a.Action.HTTP != nil {
				last[runRef{k.Ref, k.Run}] = a
			}
			continue
		}

		k, ok := keys.ParseShard(ev.Key)
		a, known := last[runRef{k.Ref, k.Run}]
		if !ok || !known || k.Late {
			continue
		}

		switch k.Kind {
		case record.KindQueued:
			w, err := record.DecodeWaiting(k, ev.Value)
			if err == nil && w.UnsentCount() > a.UnsentCount() {
				unsent[attemptID{a.Token, k.Run}] = true
			}
		case record.KindEnded, record.KindPart:
			if r, err := record.DecodeEnded(k, ev.Value); err == nil && r.Reason == task.ReasonUnsent {
				unsent[attemptID{r.Token, k.Run}] = true
			}
		}
	}

	return unsent
}
