package check

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// probe is a line of a probe log, to which test tasks append whatever the
// scheduler believes: "START|END run attempt token time pid".
type probe struct {
	end     bool
	run     string
	attempt int
	token   int64
	pid     string
	line    int
}

// CheckProbeLog judges what really ran. Of the log alone: each attempt starts at
// most once (G9), each end has a start (G10), tokens grow from attempt to attempt
// (G11). With the events of the same time (nil: none) also: each start has an
// inbox record with its token (G10); of tasks that are against overlap the
// tokens grow from start to start (G11) and no run starts while another goes on
// (G8, seen only if that one lived to write its END); an attempt after a lost
// one is there only if the policy wants it (G9).
//
// Run ids hold a part of the task's uid only, so that those of two tasks may be
// equal at one tick. The events tell them apart; the log alone may not.
//
// The order of the lines is what counts, not their times: all probes append to
// one file on one host. A last line without an end, cut off by a kill, is left
// out.
func CheckProbeLog(rd io.Reader, keys store.Keys, events []Event) []Violation {
	lines, violations := readProbes(rd)
	c := probeChecker{
		violations: violations,
		intents:    intents(keys, events),
		known:      events != nil,
		names:      map[string]string{},
		started:    map[attemptID][]probe{},
		ended:      map[attemptID][]probe{},
		last:       map[string]probe{},
		newest:     map[string]int64{},
	}
	for _, same := range c.intents {
		c.names[same[0].ID] = same[0].name
	}
	for _, p := range lines {
		if p.end {
			c.end(p)
		} else {
			c.start(p)
		}
	}
	c.overlaps(lines)
	return c.violations
}

// intent is an inbox record by its token.
type intent struct {
	task.Assigned
	name    string
	overlap string
}

type probeChecker struct {
	violations     []Violation
	intents        map[attemptID][]intent // several: of tasks whose run ids are equal
	known          bool
	names          map[string]string // a task for each run id
	started, ended map[attemptID][]probe
	last           map[string]probe // by run: what started last
	newest         map[string]int64 // per task: the highest token that has started
}

// attemptID is an attempt as a log knows it.
type attemptID struct {
	token int64
	run   string
}

func (p probe) id() attemptID { return attemptID{p.token, p.run} }

func (c *probeChecker) breach(p probe, promise, format string, args ...any) {
	v := Violation{Promise: promise, Message: fmt.Sprintf("line %d: ", p.line) + fmt.Sprintf(format, args...)}
	if in, ok := c.intent(p); ok {
		v.Task, v.Revision = in.name, p.token
	}
	c.violations = append(c.violations, v)
}

// intent is the inbox record of an attempt, if there is just one.
func (c *probeChecker) intent(p probe) (intent, bool) {
	all := c.intents[p.id()]
	if len(all) != 1 {
		return intent{}, false
	}
	return all[0], true
}

// key tells the runs of the log apart.
func (c *probeChecker) key(p probe) string {
	if in, ok := c.intent(p); ok {
		return in.name + "/" + p.run
	}
	return c.names[p.run] + "/" + p.run
}

func (c *probeChecker) start(p probe) {
	in, ok := c.intent(p)
	allowed, before := len(c.intents[p.id()]), c.started[p.id()]
	if c.known && allowed == 0 {
		c.breach(p, "G10", "run %s, attempt %d, started with token %d, which no inbox record had", p.run, p.attempt, p.token)
	}
	if len(before) >= max(allowed, 1) {
		c.breach(p, "G9", "run %s, attempt %d, started again; it had started in line %d, as process %s", p.run, p.attempt, before[0].line, before[0].pid)
	}
	if last, again := c.last[c.key(p)]; again && last.token != p.token && allowed < 2 {
		c.successor(p, last)
	}
	if ok && in.overlap != "" && in.overlap != task.OverlapAllow {
		if newest := c.newest[in.name]; p.token < newest {
			c.breach(p, "G11", "token %d starts after token %d of the same task", p.token, newest)
		}
		c.newest[in.name] = max(c.newest[in.name], p.token)
	}
	c.started[p.id()] = append(before, p)
	c.last[c.key(p)] = p
}

// successor judges an attempt that follows another of its run.
func (c *probeChecker) successor(p, before probe) {
	if p.token < before.token {
		c.breach(p, "G11", "run %s: token %d starts after token %d", p.run, p.token, before.token)
	}
	if p.attempt <= before.attempt {
		c.breach(p, "G9", "run %s: attempt %d started in line %d and again here", p.run, p.attempt, before.line)
	}
	in, ok := c.intent(p)
	was, had := c.intent(before)
	if !ok || !had {
		return
	}
	for _, a := range in.Attempts {
		if a.Token == before.token && a.State == task.Lost && !slices.Contains(was.Retry.On, task.Lost) {
			c.breach(p, "G9", "run %s: attempt %d was lost and has a successor, which its policy does not want", p.run, before.attempt)
		}
	}
}

func (c *probeChecker) end(p probe) {
	before := c.ended[p.id()]
	if len(c.started[p.id()]) == 0 {
		c.breach(p, "G10", "run %s, attempt %d, ends with token %d, which never started", p.run, p.attempt, p.token)
	}
	if len(before) >= max(len(c.intents[p.id()]), 1) {
		c.breach(p, "G9", "run %s, attempt %d, ends again; it had ended in line %d", p.run, p.attempt, before[0].line)
	}
	c.ended[p.id()] = append(before, p)
}

// overlaps looks for starts between the start and the end of another run of the
// same task.
func (c *probeChecker) overlaps(lines []probe) {
	open := map[string]probe{} // by task: what has started and will write its END
	for _, p := range lines {
		in, ok := c.intent(p)
		if !ok || in.overlap == "" || in.overlap == task.OverlapAllow {
			continue
		}
		if p.end {
			if open[in.name].token == p.token {
				delete(open, in.name)
			}
			continue
		}
		if other, busy := open[in.name]; busy {
			c.breach(p, "G8", "run %s starts while run %s of the same task goes on, until line %d", p.run, other.run, c.ended[other.id()][0].line)
		}
		if len(c.ended[p.id()]) > 0 {
			open[in.name] = p
		}
	}
}

// intents collects the inbox records of a history.
func intents(keys store.Keys, events []Event) map[attemptID][]intent {
	all := map[attemptID][]intent{}
	overlap := map[store.Ref]string{}
	for _, ev := range events {
		if k, ok := keys.ParseShard(ev.Key); ok && k.Kind == store.KindEntry && !ev.Deleted {
			if e, err := store.DecodeEntry(ev.Value); err == nil {
				overlap[k.Ref] = e.Overlap
			}
		}
	}
	for _, ev := range events {
		k, ok := keys.ParseRun(ev.Key)
		if !ok || ev.Deleted || (ev.CreateRevision != ev.ModRevision && !ev.Listed) {
			continue
		}
		if a, err := store.DecodeAssigned(k, ev.CreateRevision, ev.Value); err == nil {
			id := attemptID{ev.CreateRevision, k.Run}
			all[id] = append(all[id], intent{Assigned: a, name: k.Ref.String(), overlap: overlap[k.Ref]})
		}
	}
	return all
}

func readProbes(rd io.Reader) ([]probe, []Violation) {
	var lines []probe
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

func parseProbe(words []string) (probe, bool) {
	if len(words) != 6 || (words[0] != "START" && words[0] != "END") {
		return probe{}, false
	}
	attempt, err1 := strconv.Atoi(words[2])
	token, err2 := strconv.ParseInt(words[3], 10, 64)
	return probe{end: words[0] == "END", run: words[1], attempt: attempt, token: token, pid: words[5]}, err1 == nil && err2 == nil
}
