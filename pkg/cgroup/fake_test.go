package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake is a host whose control groups are ordinary files without a kernel behind them.
type fake struct {
	t    *testing.T
	root string
	// The files that the kernel creates in a group of each hierarchy.
	v2files, memory, cpu, pids, freezer []string
}

var (
	v2base  = []string{"cgroup.procs", "cgroup.events", "cgroup.kill", "cgroup.freeze", "cgroup.type", "cgroup.controllers", "cgroup.subtree_control", "cpu.stat"}
	v2limit = []string{"memory.max", "memory.swap.max", "memory.oom.group", "memory.events", "memory.peak", "cpu.max", "pids.max", "pids.events"}
)

func newFake(t *testing.T) *fake {
	return &fake{t: t, root: t.TempDir(),
		memory:  []string{"cgroup.procs", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"},
		cpu:     []string{"cgroup.procs", "cpu.cfs_period_us", "cpu.cfs_quota_us"},
		pids:    []string{"cgroup.procs", "pids.max", "pids.events"},
		freezer: []string{"cgroup.procs", "freezer.state"},
	}
}

func (f *fake) write(path, text string) {
	f.t.Helper()
	path = filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) read(path string) string {
	b, err := os.ReadFile(filepath.Join(f.root, path))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

// mkdir creates a group with the files that the kernel would create.
func (f *fake) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}

	var files []string

	switch rel, _ := filepath.Rel(f.root, dir); {
	case strings.HasPrefix(rel, "memory"):
		files = f.memory
	case strings.HasPrefix(rel, "cpu"):
		files = f.cpu
	case strings.HasPrefix(rel, "pids"):
		files = f.pids
	case strings.HasPrefix(rel, "freezer"):
		files = f.freezer
	default:
		files = f.v2files
	}

	for _, name := range files {
		text := ""
		if name == "cgroup.events" {
			text = "populated 0\nfrozen 0\n"
		}

		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}

	return nil
}

// mounted sets which hierarchies are mounted where, and the groups of the process.
func (f *fake) mounted(own string, mounts ...string) {
	var lines []string
	for i, m := range mounts {
		kind, controllers := "cgroup", m
		if m == "unified" {
			kind, controllers = "cgroup2", ""
		}

		dir := filepath.Join(f.root, m)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			f.t.Fatal(err)
		}

		lines = append(lines, strings.Join([]string{string(rune('1' + i)), "1", "0:1", "/", dir, "rw,relatime", "shared:1", "-", kind, "none", "rw," + controllers}, " "))
	}

	f.write("proc/mountinfo", strings.Join(lines, "\n")+"\n")
	f.write("proc/cgroup", own)
}

func (f *fake) open(setting string) *Groups {
	f.t.Helper()
	g, err := Open(Config{Setting: setting, Node: "n1", Instance: "i1", proc: filepath.Join(f.root, "proc"), mkdir: f.mkdir})
	if err != nil {
		f.t.Fatal(err)
	}

	return g
}
