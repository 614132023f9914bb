package executor

import (
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// guardStuck is how long a process may be on its way to its first instruction, and how
// long it may stand still there then.
const guardStuck = time.Second

// stuck is what a guardian knows of processes that do not get to their first
// instruction. A fork holds up the daemon until then, all of it: whoever runs as the
// user of an attempt can send that a SIGSTOP as soon as it has become that user.
type stuck struct {
	daemon  int                  // its process
	unborn  map[uint64]time.Time // wards without a process, and since when
	stopped map[int]stopped      // processes that stood still at the last look
}

type stopped struct {
	start time.Duration // of the process
	since time.Time
}

// release kills what stands still before its first instruction, so that the daemon
// goes on: it has been forked by the daemon, but that has not told of it for long.
func (g *guard) release(now time.Time) {
	unborn, long := map[uint64]time.Time{}, false
	pids := map[int]bool{os.Getpid(): true}
	for id, a := range g.watch.wards {
		if a.Pid > 0 {
			pids[a.Pid] = true
			continue
		}
		since, known := g.stuck.unborn[id]
		if !known {
			since = now
		}
		unborn[id], long = since, long || now.Sub(since) >= guardStuck
	}
	g.stuck.unborn = unborn
	still := map[int]stopped{}
	if daemon, err := readStat(g.stuck.daemon); long && err == nil && !daemon.still() {
		for _, pid := range forkedBy(g.stuck.daemon) {
			st, err := readStat(pid)
			if pids[pid] || err != nil || !st.still() {
				continue
			}
			was, before := g.stuck.stopped[pid]
			if !before || was.start != st.start {
				was = stopped{st.start, now}
			}
			still[pid] = was
			if now.Sub(was.since) >= guardStuck { // what the daemon itself does to it there takes milliseconds
				g.log.Warn("a process was stopped before its first instruction: it is killed, so that others can start", zap.Int("pid", pid))
				signalSame(st, unix.SIGKILL)
			}
		}
	}
	g.stuck.stopped = still
}

// forkedBy lists the children of all threads of a process but the first, to which
// orphans come.
func forkedBy(pid int) (children []int) {
	dir := procRoot + "/" + strconv.Itoa(pid) + "/task/"
	threads, _ := os.ReadDir(dir) // of one that has just ended nothing is stuck
	for _, t := range threads {
		if t.Name() == strconv.Itoa(pid) {
			continue
		}
		b, _ := os.ReadFile(dir + t.Name() + "/children")
		for f := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}
