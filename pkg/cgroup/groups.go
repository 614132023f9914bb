package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"go.uber.org/zap"
)

// maxIdleGroups is the maximum number of empty groups that are kept for later attempts. Each holds three
// descriptors.
const maxIdleGroups = 64

// Config configures Groups.
type Config struct {
	Setting  string // Auto, Off, or the path of a group
	Node     string
	Instance string
	// Record is the file that lists the groups of this daemon. The next daemon removes them if neither this one
	// nor its guardian does. Empty means that there is no such file.
	Record string
	Logger *zap.Logger // nil: none

	// Tests use ordinary directories instead of control groups:
	proc  string                 // replaces /proc/self
	mkdir func(dir string) error // also creates the files that the kernel would create
}

// Groups creates the control groups of a daemon's attempts, and keeps empty ones for
// reuse. A nil *Groups stands for a host without control groups. The methods may be called from any goroutine.
type Groups struct {
	log           *zap.Logger
	record        string                 // see Config
	former        []string               // roots of former daemons
	base          string                 // the v2 group that was prepared for controllers; "": none
	root          string                 // the directory of the groups in which processes are found; "": no groups
	freezer       bool                   // root belongs to the v1 freezer
	v2            []string               // the v2 controllers of limited groups
	v1            map[string]string      // the directories of v1 controllers for limits, by controller
	mkdir         func(dir string) error // creates a group
	unenforceable error                  // why some or all limits cannot be enforced; nil: they can

	mu          sync.Mutex
	next        int             // the last number given to a group
	free        []*Group        // empty groups without limits
	quarantined map[*Group]bool // quarantined groups: with a process that does not end, or that cannot be removed
}

// Roots returns the directories that have to be passed to Remove if the daemon dies.
func (g *Groups) Roots() []string {
	if g == nil || g.root == "" {
		return nil
	}

	roots := []string{g.root}
	for _, c := range []string{"memory", "cpu", "pids"} {
		if dir := g.v1[c]; dir != "" && !slices.Contains(roots, dir) {
			roots = append(roots, dir)
		}
	}

	return roots
}

// Any reports whether attempts have groups.
func (g *Groups) Any() bool { return g != nil && g.root != "" }

// LimitsError returns why attempts have no groups or cannot be limited by them, or nil if they can.
func (g *Groups) LimitsError() error {
	if g == nil {
		return errors.New("control groups are switched off")
	}
	return g.unenforceable
}

// Limited returns those of the controllers cpu, memory and pids with which attempts can be limited.
func (g *Groups) Limited() []string {
	var all []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if g.hasController(c) {
			all = append(all, c)
		}
	}

	return all
}

// hasController reports whether limits of a controller can be enforced.
func (g *Groups) hasController(controller string) bool {
	return g.Any() && (g.v1[controller] != "" || slices.Contains(g.v2, controller))
}

// Unsupported returns those of the limits that this host cannot enforce: memory, swap, cpu, pids.
func (g *Groups) Unsupported(l Limits) (lacks []string) {
	l.eachController(func(controller, limit string) {
		if !g.hasController(controller) || limit == "swap" && !g.countsSwap() {
			lacks = append(lacks, limit)
		}
	})

	return lacks
}

// countsSwap reports whether the kernel accounts swap. Without it, swap cannot be limited.
func (g *Groups) countsSwap() bool {
	if dir := g.v1["memory"]; dir != "" {
		return fileExists(dir, "memory.memsw.limit_in_bytes")
	}
	return fileExists(filepath.Join(g.root, limitedDir), "memory.swap.max")
}

// Acquire returns an empty group with limits. Limits that the host cannot enforce are ignored; see Unsupported. The
// caller must return the group with Release.
func (g *Groups) Acquire(l Limits) (*Group, error) {
	if !g.Any() {
		return nil, errors.New("no control groups")
	}

	g.mu.Lock()
	for n := len(g.free); !l.Any() && n > 0; n-- {
		x := g.free[n-1]
		g.free = g.free[:n-1]

		if x.isEmpty() { // root may have removed the group or moved a process into it
			g.mu.Unlock()
			return x, nil
		}

		g.discardGroup(x)
	}

	g.next++
	name := strconv.Itoa(g.next)
	g.mu.Unlock()

	x, err := g.makeGroup(name, l)
	if err != nil {
		return nil, fmt.Errorf("create a control group: %w", err)
	}

	return x, nil
}

// makeGroup creates a group. After an error nothing of it is left, except what cannot be removed.
func (g *Groups) makeGroup(name string, l Limits) (x *Group, err error) {
	x = &Group{fd: -1, events: -1, stat: -1, freezer: g.freezer, dir: filepath.Join(g.root, plainDir, name)}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.removeDir())
		}
	}()

	if l.Any() {
		x.limited, x.dir = true, filepath.Join(g.root, limitedDir, name)
	}

	if err := g.mkdir(x.dir); err != nil {
		return x, err
	}
	if err := x.openFiles(); err != nil || !x.limited {
		return x, err
	}

	if len(g.v2) > 0 {
		if err := g.supportedLimits(l, func(c string) bool { return slices.Contains(g.v2, c) }).setV2(x.dir); err != nil {
			return x, err
		}
	}

	needs := map[string]bool{}
	l.eachController(func(controller, _ string) { needs[controller] = true })

	for _, c := range []string{"memory", "cpu", "pids"} {
		if g.v1[c] == "" || !needs[c] {
			continue
		}

		dir := filepath.Join(g.v1[c], name)
		if !slices.Contains(x.joined, dir) { // two controllers may share a hierarchy
			if err := g.mkdir(dir); err != nil {
				return x, err
			}
			x.joined = append(x.joined, dir)
		}

		if err := g.supportedLimits(l, func(string) bool { return true }).setV1(dir, c); err != nil {
			return x, err
		}

		if c == "memory" {
			x.memory = dir
		}

		if c == "pids" {
			x.pids = dir
		}
	}

	return x, nil
}

// supportedLimits returns those of the limits that can be enforced and for whose controller fits returns true.
func (g *Groups) supportedLimits(l Limits, fits func(controller string) bool) Limits {
	if !fits("memory") || !g.hasController("memory") {
		l.Memory, l.Swap = 0, nil
	}

	if l.Swap != nil && !g.countsSwap() {
		l.Swap = nil
	}

	if !fits("cpu") || !g.hasController("cpu") {
		l.CPU = 0
	}

	if !fits("pids") || !g.hasController("pids") {
		l.PIDs = 0
	}

	return l
}

// Release returns a group, which should be empty. A group that is not empty is quarantined: it is never
// reused, its processes are killed, and it is removed when they have ended. Each call also tries again to remove the
// quarantined groups.
func (g *Groups) Release(x *Group) {
	g.mu.Lock()
	defer g.mu.Unlock()

	for old := range g.quarantined {
		g.discardGroup(old)
	}

	if x.isEmpty() && !x.limited && !x.killed && x.resetForReuse() == nil && len(g.free) < maxIdleGroups {
		g.free = append(g.free, x)
		return
	}

	g.discardGroup(x)
}

// discardGroup removes a group, or quarantines it if it cannot be removed. The caller holds mu.
func (g *Groups) discardGroup(x *Group) {
	if !x.isEmpty() && fileExists(x.dir, "") {
		_ = x.Kill()

		if !g.quarantined[x] {
			g.log.Error("processes of an attempt survived SIGKILL; quarantined their control group", zap.String("cgroup", x.dir), zap.Ints("pids", x.PIDs()))
		}

		g.quarantined[x] = true

		return
	}

	if err := x.removeDir(); err != nil {
		if !g.quarantined[x] {
			g.log.Error("quarantined a control group that cannot be removed", zap.String("cgroup", x.dir), zap.Error(err))
		}
		g.quarantined[x] = true
		return
	}

	delete(g.quarantined, x)
}

// Quarantined returns the number of quarantined groups.
func (g *Groups) Quarantined() int {
	if g == nil {
		return 0
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	return len(g.quarantined)
}

// Close kills the processes that are left in groups, and removes all groups and everything that Open created. Attempts
// have no groups afterwards.
func (g *Groups) Close() error {
	if g == nil {
		return nil
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	// Remove removes the directories of all groups, so only the descriptors have to be closed.
	for _, x := range g.free {
		x.closeFiles()
	}

	for x := range g.quarantined {
		x.closeFiles()
	}

	g.free, g.quarantined = nil, map[*Group]bool{}
	roots := g.Roots()
	if len(roots) == 0 {
		return nil
	}

	err := Remove(roots, removalTimeout)
	g.root = ""
	if err == nil {
		// Groups of former daemons that ClearFormer has not removed stay in the record.
		err = g.writeRecord(g.former)
	}

	return err
}

// Limits apply to all processes of a group together. A zero value means no limit.
type Limits struct {
	Memory int64   // bytes
	Swap   *int64  // bytes; nil: no limit
	CPU    float64 // processors, such as 1.5
	PIDs   int64   // processes and threads
}

// Any reports whether there is a limit.
func (l Limits) Any() bool { return l.Memory > 0 || l.Swap != nil || l.CPU > 0 || l.PIDs > 0 }

// eachController calls f for each limit, with the controller that it needs and its name.
func (l Limits) eachController(f func(controller, limit string)) {
	if l.Memory > 0 {
		f("memory", "memory")
	}

	if l.Swap != nil {
		f("memory", "swap")
	}

	if l.CPU > 0 {
		f("cpu", "cpu")
	}

	if l.PIDs > 0 {
		f("pids", "pids")
	}
}

// cpuPeriod is the period of the CPU limit in µs. It is the kernel's default.
const cpuPeriod = 100_000

// cpuQuota returns the processor time in each period in µs. The kernel accepts no less than 1 ms.
func (l Limits) cpuQuota() int64 { return max(1000, int64(math.Round(l.CPU*cpuPeriod))) }

// setV2 writes the limits of a v2 group.
func (l Limits) setV2(dir string) error {
	var errs []error
	set := func(file, value string) {
		if err := writeFile(dir, file, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}

	if l.Memory > 0 {
		set("memory.max", strconv.FormatInt(l.Memory, 10))
		// Kill the whole group if memory is exhausted, because an attempt rarely continues correctly without one of
		// its processes. The file does not exist before Linux 4.19.
		if err := writeFile(dir, "memory.oom.group", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}

	if l.Swap != nil {
		set("memory.swap.max", strconv.FormatInt(*l.Swap, 10))
	}

	if l.CPU > 0 {
		set("cpu.max", fmt.Sprintf("%d %d", l.cpuQuota(), cpuPeriod))
	}

	if l.PIDs > 0 {
		set("pids.max", strconv.FormatInt(l.PIDs, 10))
	}

	return errors.Join(errs...)
}

// setV1 writes the limits of one v1 controller.
func (l Limits) setV1(dir, controller string) error {
	var errs []error
	set := func(file string, value int64) {
		if err := writeFile(dir, file, strconv.FormatInt(value, 10)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}

	switch controller {
	case "memory":
		if l.Memory > 0 {
			set("memory.limit_in_bytes", l.Memory)
		}

		if l.Swap != nil {
			set("memory.memsw.limit_in_bytes", l.Memory+*l.Swap) // v1 limits memory and swap together
		}
	case "cpu":
		if l.CPU > 0 {
			set("cpu.cfs_period_us", cpuPeriod)
			set("cpu.cfs_quota_us", l.cpuQuota())
		}
	case "pids":
		if l.PIDs > 0 {
			set("pids.max", l.PIDs)
		}
	}

	return errors.Join(errs...)
}
