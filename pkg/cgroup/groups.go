package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"go.uber.org/zap"
)

// maxIdleGroups is how many empty groups are kept for the next attempts, at most. Each holds three
// descriptors.
const maxIdleGroups = 64

// Config says whose groups they are.
type Config struct {
	Setting  string // Auto, Off, or the path of a group
	Node     string
	Instance string
	// Record is the file that tells the next daemon what to remove, should this one
	// and its guardian not; empty: none is kept.
	Record string
	Logger *zap.Logger // nil: none

	// For tests, on directories that are no control groups:
	proc  string                 // instead of /proc/self
	mkdir func(dir string) error // makes what the kernel would
}

// Groups makes the groups of a daemon's attempts, and keeps those that are to be
// used again. A nil *Groups is that of a host without any.
type Groups struct {
	log     *zap.Logger
	record  string
	former  []string // roots of former daemons
	base    string   // the v2 group that was readied for controllers; else empty
	root    string   // of the groups that attempts are found by
	freezer bool     // root is of the v1 freezer
	v2      []string // controllers of limited groups
	v1      map[string]string
	mkdir   func(dir string) error
	lacks   error // why limits cannot be had, where they cannot

	mu    sync.Mutex
	next  int
	free  []*Group
	aside map[*Group]bool // with a process that does not end
}

// Roots are the directories that Remove removes, for whoever comes after.
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

// Why says why attempts have no groups, or cannot be limited by them; nil: they can.
func (g *Groups) Why() error {
	if g == nil {
		return errors.New("control groups are switched off")
	}
	return g.lacks
}

// Limited are the controllers by which attempts can be limited: of cpu, memory and pids.
func (g *Groups) Limited() []string {
	var all []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if g.hasController(c) {
			all = append(all, c)
		}
	}

	return all
}

func (g *Groups) hasController(controller string) bool {
	return g.Any() && (g.v1[controller] != "" || slices.Contains(g.v2, controller))
}

// Lacks are the limits that this host cannot enforce: memory, swap, cpu, pids.
func (g *Groups) Lacks(l Limits) (lacks []string) {
	l.eachController(func(controller, limit string) {
		if !g.hasController(controller) || limit == "swap" && !g.countsSwap() {
			lacks = append(lacks, limit)
		}
	})

	return lacks
}

func (g *Groups) countsSwap() bool {
	if dir := g.v1["memory"]; dir != "" {
		return fileExists(dir, "memory.memsw.limit_in_bytes")
	}
	return fileExists(filepath.Join(g.root, "limited"), "memory.swap.max")
}

// Take gives an empty group, with limits; what of them the host lacks is not
// enforced. It is to be given back.
func (g *Groups) Take(l Limits) (*Group, error) {
	if !g.Any() {
		return nil, errors.New("there are no control groups")
	}

	g.mu.Lock()
	for n := len(g.free); !l.Any() && n > 0; n-- {
		x := g.free[n-1]
		g.free = g.free[:n-1]

		if x.isEmpty() { // root may have removed it, or put something in
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
		return nil, fmt.Errorf("make a control group: %w", err)
	}

	return x, nil
}

func (g *Groups) makeGroup(name string, l Limits) (x *Group, err error) {
	x = &Group{fd: -1, events: -1, stat: -1, freezer: g.freezer, dir: filepath.Join(g.root, "plain", name)}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.removeDir())
		}
	}()

	if l.Any() {
		x.limited, x.dir = true, filepath.Join(g.root, "limited", name)
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
		if !slices.Contains(x.joined, dir) { // two controllers may share one
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

// supportedLimits leaves of limits those that can be enforced and whose controller fits.
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

// Give takes a group back that is empty. One that is not is set aside: it is never
// handed on, but killed and removed when its processes have ended after all.
func (g *Groups) Give(x *Group) {
	g.mu.Lock()
	defer g.mu.Unlock()

	for old := range g.aside {
		g.discardGroup(old)
	}

	if x.isEmpty() && !x.limited && !x.killed && x.resetForReuse() == nil && len(g.free) < maxIdleGroups {
		g.free = append(g.free, x)
		return
	}

	g.discardGroup(x)
}

// discardGroup removes a group, or sets it aside. mu is held.
func (g *Groups) discardGroup(x *Group) {
	if !x.isEmpty() && fileExists(x.dir, "") {
		_ = x.Kill()

		if !g.aside[x] {
			g.log.Error("processes of an attempt survived SIGKILL; quarantined their control group", zap.String("cgroup", x.dir), zap.Ints("pids", x.PIDs()))
		}

		g.aside[x] = true

		return
	}

	if err := x.removeDir(); err != nil {
		if !g.aside[x] {
			g.log.Error("quarantined a control group that cannot be removed", zap.String("cgroup", x.dir), zap.Error(err))
		}
		g.aside[x] = true
		return
	}

	delete(g.aside, x)
}

// Aside is how many groups are set aside.
func (g *Groups) Aside() int {
	if g == nil {
		return 0
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	return len(g.aside)
}

// Close removes all groups, killing what is left in them, and what Open made.
func (g *Groups) Close() error {
	if g == nil {
		return nil
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	for _, x := range g.free {
		x.closeFiles()
	}

	for x := range g.aside {
		x.closeFiles()
	}

	g.free, g.aside = nil, map[*Group]bool{}
	roots := g.Roots()
	if len(roots) == 0 {
		return nil
	}

	err := Remove(roots, removalTimeout)
	g.root = ""
	if err == nil {
		err = g.writeRecord(g.former)
	}

	return err
}
