// Package hostfacts measures the facts that a node announces about its host: processors, load, memory
// and disk space. It also determines which of the node's own limits are exceeded.
//
// If a control group around the daemon allows less than the machine has, that counts. A value that cannot be
// measured is unknown, which is not an error; the state of its limit does not change. A file
// system that hangs blocks one goroutine, and each measurement waits at most two seconds for it.
package hostfacts

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// host measures the values of task.Facts. One goroutine owns it.
type host struct {
	root    string // "/", except in tests
	dataDir string
	// statfs may hang, for example on a file system whose server is unavailable. So there is at most one call at a time,
	// and measureDisk waits for it at most diskTimeout.
	statfs  func(path string) (total, free int64, err error)
	pending chan space // receives the result of a call in progress; nil: none
}

// space is the result of statfs, in bytes.
type space struct {
	total, free int64
	err         error
}

func newHost(dataDir string) *host { return &host{root: "/", dataDir: dataDir, statfs: diskSpace} }

// diskTimeout is how long a measurement waits for the file system.
const diskTimeout = 2 * time.Second

// measureFacts measures the host. Values that cannot be measured stay nil or 0. Free space is rounded down to whole
// MiB, because smaller changes are noise.
func (h *host) measureFacts(ctx context.Context) *task.Facts {
	f := &task.Facts{CPUs: h.countCPUs()}
	if all := h.hostCPUs(); all > f.CPUs {
		f.HostCPUs = all
	}

	f.Load1, f.Load5, f.Load15 = h.readLoads()
	if total, free, ok := h.readMemory(); ok {
		f.Memory, f.MemoryFree = total, wholeMebibytes(free)
	}

	if s, ok := h.measureDisk(ctx); ok {
		f.Disk, f.DiskFree = s.total, wholeMebibytes(s.free)
	}

	return f
}

// wholeMebibytes rounds down to whole MiB, and to 0 if n is negative.
func wholeMebibytes(n int64) *int64 {
	n = max(n, 0) >> 20 << 20
	return &n
}

// readLoads returns the load averages, or nil for those that cannot be read.
func (h *host) readLoads() (l1, l5, l15 *float64) {
	words := strings.Fields(h.readFile("proc/loadavg"))
	if len(words) < 3 {
		return nil, nil, nil
	}

	load := func(s string) *float64 {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return nil
		}
		return &v
	}

	return load(words[0]), load(words[1]), load(words[2])
}

// countCPUs returns the number of processors on which the daemon may run. If a control group around it allows less
// processor time, it returns the whole processors of that, but at least 1.
func (h *host) countCPUs() int {
	n := float64(runtime.NumCPU())
	for _, g := range h.listGroups("cpu") {
		quota, period := h.readNumber(g.dir+"/cpu.cfs_quota_us"), h.readNumber(g.dir+"/cpu.cfs_period_us")
		if g.v2 {
			words := append(strings.Fields(h.readFile(g.dir+"/cpu.max")), "", "")
			quota, period = wholeNumber(words[0]), wholeNumber(words[1])
		}

		if quota > 0 && period > 0 {
			n = min(n, float64(quota)/float64(period))
		}
	}

	return max(1, int(n))
}

// hostCPUs returns the number of processors of the machine, or 0 if it is unknown.
func (h *host) hostCPUs() (n int) {
	for line := range strings.Lines(h.readFile("proc/stat")) {
		if rest, ok := strings.CutPrefix(line, "cpu"); ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			n++
		}
	}

	return n
}

// readMemory returns the total and the free memory in bytes: the machine's, or that of a control group around the
// daemon if it is less. ok is false if they are unknown.
func (h *host) readMemory() (total, free int64, ok bool) {
	info := h.readTable("proc/meminfo")
	total, ok = info["MemTotal:"]
	free, known := info["MemAvailable:"]
	if !ok || !known {
		return 0, 0, false
	}

	total, free = total<<10, free<<10
	for _, g := range h.listGroups("memory") {
		maximum, usage, inactive := "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"
		if g.v2 {
			maximum, usage, inactive = "/memory.max", "/memory.current", "inactive_file"
		}

		limit, used := h.readNumber(g.dir+maximum), h.readNumber(g.dir+usage)
		if limit <= 0 || limit >= total || used < 0 { // v1 reports a number near 2^63 for no limit
			continue
		}

		used -= h.readTable(g.dir + "/memory.stat")[inactive] // the kernel frees inactive file pages when needed; MemAvailable includes them, too
		total, free = limit, min(free, max(limit-used, 0))
	}

	return total, free, true
}

// hostGroup is a control group around the daemon, with its directory below root.
type hostGroup struct {
	dir string
	v2  bool
}

// listGroups returns the control groups around the daemon that may have a controller, the outermost first. Some of the
// directories may not exist. In a container that cannot see its own path, the mounted group is among
// them.
func (h *host) listGroups(controller string) (list []hostGroup) {
	for line := range strings.Lines(h.readFile("proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}

		var mounts []string
		v2 := parts[1] == ""
		switch {
		case v2:
			mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		case parts[1] == controller:
			mounts = []string{"sys/fs/cgroup/" + controller}
		case slices.Contains(strings.Split(parts[1], ","), controller):
			mounts = []string{"sys/fs/cgroup/" + controller, "sys/fs/cgroup/" + parts[1]}
		}

		for _, mount := range mounts {
			dir := mount
			for step := range strings.SplitSeq(filepath.Clean("/"+parts[2]), "/") { // the first is "": the mount itself
				dir = filepath.Join(dir, step)
				list = append(list, hostGroup{dir, v2})
			}
		}
	}

	return list
}

// measureDisk returns the space of the data directory's file system, and false if it is unknown or not available in
// time. A call that hangs is reused by the next measurement.
func (h *host) measureDisk(ctx context.Context) (space, bool) {
	if h.pending == nil {
		h.pending = make(chan space, 1)
		go func(to chan<- space) {
			total, free, err := h.statfs(h.dataDir)
			to <- space{total, free, err}
		}(h.pending)
	}

	wait := time.NewTimer(diskTimeout)
	defer wait.Stop()

	select {
	case s := <-h.pending:
		h.pending = nil
		return s, s.err == nil
	case <-wait.C:
	case <-ctx.Done():
	}

	return space{}, false
}

// diskSpace returns the total space and the space that is free for ordinary users, in bytes.
func diskSpace(path string) (total, free int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Blocks) * int64(s.Bsize), int64(s.Bavail) * int64(s.Bsize), nil
}

// readFile returns the contents of a file, or "" if it cannot be read.
func (h *host) readFile(path string) string {
	b, _ := os.ReadFile(filepath.Join(h.root, path)) // a value that cannot be read is unknown
	return string(b)
}

// readNumber returns the number in a file, or -1 if there is none.
func (h *host) readNumber(path string) int64 { return wholeNumber(strings.TrimSpace(h.readFile(path))) }

// wholeNumber parses a number. It returns -1 for other text, such as "max" in cgroup v2.
func wholeNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// readTable reads lines that consist of a name and a number. It skips other lines.
func (h *host) readTable(path string) map[string]int64 {
	t := map[string]int64{}
	for line := range strings.Lines(h.readFile(path)) {
		if words := strings.Fields(line); len(words) >= 2 {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				t[words[0]] = n
			}
		}
	}

	return t
}

// measureEvery is the interval at which the host is measured. It equals the interval at which nodes announce
// themselves. A change of facts alone does not cause an announcement.
const measureEvery = 5 * time.Second

// Limits are the limits of the node's settings. While one is exceeded, the node accepts no runs. 0 means no limit.
type Limits struct {
	Load                 float64
	MemoryFree, DiskFree task.Size
}

// Monitor measures the host and determines which limits are exceeded. Its methods may be called from any goroutine.
type Monitor struct {
	host    *host
	limits  Limits
	changed func() // called when the set of exceeded limits has changed
	log     *zap.Logger
	first   chan struct{} // closed after the first measurement

	mu       sync.Mutex
	known    *task.Facts // the last measurement; nil: none yet
	exceeded []string    // the names of the facts whose limits are exceeded
}

// NewMonitor returns a monitor of the host and of the file system that contains dataDir. It measures nothing before
// Run. changed is called when the set of exceeded limits has changed.
func NewMonitor(dataDir string, l Limits, changed func(), log *zap.Logger) *Monitor {
	return &Monitor{host: newHost(dataDir), limits: l, changed: changed,
		log: log.Named("facts"), first: make(chan struct{})}
}

// Measured returns a channel that is closed when the host has been measured once.
func (m *Monitor) Measured() <-chan struct{} { return m.first }

// Run measures every measureEvery until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		m.setFacts(m.host.measureFacts(ctx))

		if first {
			close(m.first)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// setFacts stores a measurement and calls changed if other limits are exceeded now.
func (m *Monitor) setFacts(now *task.Facts) {
	m.mu.Lock()
	was := m.exceeded
	m.known, m.exceeded = now, m.limits.overLimits(now, was)
	is := m.exceeded
	m.mu.Unlock()

	if !slices.Equal(was, is) {
		m.log.Info("limits exceeded on this host changed", zap.Strings("exceeded", is), zap.Strings("before", was), zap.Any("facts", now))
		m.changed()
	}
}

// Known returns the last measurement and the names of the facts whose limits are exceeded.
func (m *Monitor) Known() (known *task.Facts, exceeded []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known, m.exceeded
}

// reliefPart is the fraction by which a fact has to be within its limit again before the limit
// no longer counts as exceeded. This hysteresis keeps changes, which are announced at once, rare.
const reliefPart = 0.1

// overLimits returns the names of the facts that exceed their limits. before is the previous result. An unknown fact
// keeps its state.
func (l Limits) overLimits(now *task.Facts, before []string) (list []string) {
	check := func(name string, limit float64, beyond func(v, limit float64) bool, back float64) {
		if limit == 0 {
			return
		}

		was := slices.Contains(before, name)
		// A limit that is exceeded is tightened, so that the fact has to be well within it before it no longer counts.
		if was {
			limit *= 1 + back
		}

		v, known := now.Fact(name)
		if known && beyond(v, limit) || !known && was {
			list = append(list, name)
		}
	}

	more := func(v, limit float64) bool { return v > limit }
	less := func(v, limit float64) bool { return v < limit }
	check(task.FactLoad1, l.Load, more, -reliefPart)
	check(task.FactMemoryFree, float64(l.MemoryFree), less, reliefPart)
	check(task.FactDiskFree, float64(l.DiskFree), less, reliefPart)

	return list
}
