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
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// host measures what task.Facts tell. It belongs to one goroutine.
type host struct {
	root    string // "/", but in tests
	dataDir string
	// statfs may hang, as on a file system whose server is away: one call at a time,
	// and nobody waits long for it.
	statfs  func(path string) (total, free int64, err error)
	pending chan space
}

type space struct {
	total, free int64
	err         error
}

func newHost(dataDir string) *host { return &host{root: "/", dataDir: dataDir, statfs: diskSpace} }

// diskTimeout is how long a measuring waits for the file system.
const diskTimeout = 2 * time.Second

// measureFacts tells what it can. Sizes are whole MiB: the rest is noise.
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

func wholeMebibytes(n int64) *int64 {
	n = max(n, 0) >> 20 << 20
	return &n
}

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

// countCPUs are those that the daemon may run on, or, where a cgroup around it leaves less
// time, the whole ones of that.
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

// hostCPUs are the machine's; 0 if it does not tell.
func (h *host) hostCPUs() (n int) {
	for line := range strings.Lines(h.readFile("proc/stat")) {
		if rest, is := strings.CutPrefix(line, "cpu"); is && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			n++
		}
	}

	return n
}

// readMemory is the machine's, or, where a cgroup around the daemon leaves less, that.
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
		if limit <= 0 || limit >= total || used < 0 { // v1 says a number near 2^63 for none
			continue
		}

		used -= h.readTable(g.dir + "/memory.stat")[inactive] // is given back when it is needed, as MemAvailable counts it
		total, free = limit, min(free, max(limit-used, 0))
	}

	return total, free, true
}

// hostGroup is the directory of a cgroup.
type hostGroup struct {
	dir string
	v2  bool
}

// listGroups are those around the daemon that have a controller, the widest first, and
// perhaps others. In a container whose own path is not to be seen it is the one that is
// mounted.
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

func diskSpace(path string) (total, free int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Blocks) * int64(s.Bsize), int64(s.Bavail) * int64(s.Bsize), nil
}

// readFile is a file's text; "" if there is none.
func (h *host) readFile(path string) string {
	b, _ := os.ReadFile(filepath.Join(h.root, path)) // what cannot be read is not known
	return string(b)
}

// readNumber reads a file that holds one; -1 if it does not.
func (h *host) readNumber(path string) int64 { return wholeNumber(strings.TrimSpace(h.readFile(path))) }

// wholeNumber is -1 for what is none, such as the "max" of v2.
func wholeNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// readTable reads lines of a name and a number.
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
