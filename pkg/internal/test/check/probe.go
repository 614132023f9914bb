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
	of, _, ok := task.ParentOf(a)
	other, _, too := task.ParentOf(b)
	return ok && too && of == other
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
