package proctree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/cgroup"
)

// KillLimit is how long callers wait for processes to end after SIGKILL. Longer delays mean that a process hangs
// in the kernel.
const KillLimit = 5 * time.Second

// KillSet is a set of attempts whose processes all have to be killed: those in their control
// groups, those in their process groups, and those that carry an attempt's mark in their
// environment. Without a control group, it does not find a process that has both left the
// process group and cleared its environment.
type KillSet struct {
	cgroups []string
	groups  map[int]Birth     // by the number of the process group
	marks   map[string][]Mark // by run id
	waited  time.Duration     // for processes in the middle of an execve
}

// AddMark adds all processes that carry the mark of an attempt in their environment.
func (s *KillSet) AddMark(l Mark) {
	if s.marks == nil {
		s.marks = map[string][]Mark{}
	}
	s.marks[l.RunID] = append(s.marks[l.RunID], l)
}

// AddGroup adds a process group whose leader was created in the interval b.
func (s *KillSet) AddGroup(pgid int, b Birth) {
	if s.groups == nil {
		s.groups = map[int]Birth{}
	}
	s.groups[pgid] = b
}

// AddCgroup adds all processes in a control group, and in those below it.
func (s *KillSet) AddCgroup(dir string) { s.cgroups = append(s.cgroups, dir) }

// KillGroups signals all groups at once and does not wait. Call it before KillAll, which first
// has to read every process of the host.
func (s *KillSet) KillGroups() {
	for _, dir := range s.cgroups {
		cgroup.Kill(dir)
	}

	for pgid, b := range s.groups {
		if leader, err := ReadStat(pgid); err == nil && b.matchesStart(leader.Start) {
			unix.Kill(-pgid, unix.SIGKILL)
		}
	}
}

// KillAll kills until two scans in a row find nothing, or until done is closed, and returns
// how many processes it killed. One empty scan is not enough, because a process may fork while
// the list is read. An error means that some processes may be left.
func (s *KillSet) KillAll(done <-chan struct{}) (killed int, err error) {
	// Empty scans follow each other after 1 ms, 2 ms and so on, up to 100 ms while processes remain.
	seen := map[int]bool{}

	for clean, pause := 0, time.Millisecond; ; {
		found, err := s.killOnce(seen)
		if err != nil {
			return len(seen), err
		}

		if found > 0 {
			clean = 0
		} else if clean++; clean == 2 {
			return len(seen), nil
		}

		select {
		case <-done:
			return len(seen), fmt.Errorf("%d processes did not end", found)
		case <-time.After(pause):
		}

		pause = min(2*pause, 100*time.Millisecond)
	}
}

// killOnce scans all processes once, kills those in the set, and returns how many were alive.
func (s *KillSet) killOnce(seen map[int]bool) (int, error) {
	pids, err := ListPIDs()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}

	self := os.Getpid()
	found := 0
	// Control groups first: they contain processes that cannot be found by their group or mark.
	for _, dir := range s.cgroups {
		for _, pid := range cgroup.Kill(dir) {
			seen[pid] = true
			found++
		}
	}

	for _, pid := range pids {
		if pid == self {
			continue
		}

		st, err := ReadStat(pid)
		if err != nil || st.Dead() || !s.shouldKill(st) {
			continue
		}

		found++

		if signalSame(st, unix.SIGKILL) {
			seen[pid] = true
		}
	}

	return found, nil
}

// shouldKill reports whether the process belongs to the set.
func (s *KillSet) shouldKill(st Stat) bool { return s.inGroup(st) || s.hasMark(st.PID) }

// inGroup reports whether a process belongs to one of the groups. A group whose number now
// belongs to another leader is not the attempt's.
func (s *KillSet) inGroup(st Stat) bool {
	b, ok := s.groups[st.Group]
	if !ok {
		return false
	}
	if st.PID == st.Group {
		return b.matchesStart(st.Start)
	}
	if leader, err := ReadStat(st.Group); err == nil {
		return b.matchesStart(leader.Start)
	}

	// The leader is gone. A member that is older than the attempt belongs to an earlier group with this number.
	return st.Start >= b.From.Truncate(clockTick)-clockTick
}

// hasMark reports whether a process carries the mark of an attempt. An environment that cannot be read, for example
// because the process has ended, carries none.
func (s *KillSet) hasMark(pid int) bool {
	if len(s.marks) == 0 {
		return false
	}

	return s.isMarked(s.environOf(pid))
}

// maxExecveWait is how long a KillSet waits for processes in the middle of an execve, in total. An execve takes a millisecond,
// but a process of any user can make it last.
const maxExecveWait = time.Second

// environOf returns the environment of a process; empty if it has none, or if it cannot be read.
func (s *KillSet) environOf(pid int) []byte {
	return readEnviron(procRoot+"/"+strconv.Itoa(pid), func() bool {
		if s.waited >= maxExecveWait {
			return false
		}

		time.Sleep(time.Millisecond)
		s.waited += time.Millisecond

		return true
	})
}

// isMarked reports whether an environment contains the mark of an attempt.
func (s *KillSet) isMarked(env []byte) bool {
	// Most processes carry no mark, so check for the variable's name before the environment is split.
	if !bytes.Contains(env, []byte(EnvRunID+"=")) {
		return false
	}

	get := func(name string) string {
		for entry := range bytes.SplitSeq(env, []byte{0}) {
			if k, v, ok := bytes.Cut(entry, []byte{'='}); ok && string(k) == name {
				return string(v)
			}
		}

		return ""
	}

	for _, l := range s.marks[get(EnvRunID)] {
		if get(EnvToken) == strconv.FormatInt(l.Token, 10) &&
			(l.Task == "" || get(EnvTask) == l.Task) && (l.Namespace == "" || get(EnvNamespace) == l.Namespace) {
			return true
		}
	}

	return false
}

// KillMarked kills every process that carries the run id and the token of
// one of these attempts in its environment, and returns when none is left. A
// restarted daemon calls it for the attempts that its inbox lists for its former instance.
// If it returns nil and the former guardian has exited, that instance may be reported as cleared.
func KillMarked(ctx context.Context, attempts []Mark) (killed int, err error) {
	if len(attempts) == 0 {
		return 0, nil
	}

	var h KillSet

	for _, l := range attempts {
		h.AddMark(l)
	}

	if killed, err = h.KillAll(ctx.Done()); err != nil {
		return killed, fmt.Errorf("kill leftovers: %w", err)
	}

	return killed, nil
}

// Sweeper kills processes by the marks in their environment. A scan reads all
// processes of the host, so callers that wait at the same time share the next one.
type Sweeper struct {
	turn sync.Mutex    // held during a scan
	mu   sync.Mutex    // guards next, and the kill set of a scan that has not begun
	next *scanForMarks // the scan that has not begun; nil: none is requested
}

// scanForMarks is a scan that callers share. Its results are valid once done is set, under Sweeper.turn.
type scanForMarks struct {
	targets KillSet // the marks of all callers
	done    bool
	killed  int
	err     error
}

// KillMarked kills all processes that carry the mark of an attempt, and returns when none does, or with an error after
// KillLimit. Of the callers that share a scan, only the first gets the number of killed processes.
func (s *Sweeper) KillMarked(l Mark) (int, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &scanForMarks{}
	}

	b := s.next
	b.targets.AddMark(l)
	s.mu.Unlock()

	s.turn.Lock()
	defer s.turn.Unlock()

	if b.done {
		return 0, b.err // another caller has run the scan and received the number
	}

	// From now on, new callers request another scan: this one may already have passed their processes.
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()

	late := make(chan struct{})
	defer time.AfterFunc(KillLimit, func() { close(late) }).Stop()

	b.killed, b.err = b.targets.KillAll(late)
	b.done = true

	return b.killed, b.err
}
