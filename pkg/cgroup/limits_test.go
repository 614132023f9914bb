package cgroup

import (
	"os"
	"slices"
	"testing"
)

var everything = Limits{Memory: 64 << 20, Swap: new(int64), CPU: 1.5, PIDs: 20}

// service returns a host with v2 where systemd has delegated all controllers.
func service(t *testing.T) *fake {
	f := newFake(t)
	f.v2files = slices.Concat(v2base, v2limit)
	f.mounted("0::/system.slice/carillon.service\n", "unified")

	for _, name := range v2base {
		f.write("unified/system.slice/carillon.service/"+name, "")
	}

	f.write("unified/system.slice/carillon.service/cgroup.controllers", "cpuset cpu io memory pids\n")

	return f
}

func TestLimits_OfV2(t *testing.T) {
	t.Parallel()
	f := service(t)
	f.write("unified/carillon/cgroup.controllers", "cpu memory pids\n")
	f.write("unified/carillon/cgroup.subtree_control", "")

	g := f.open("/carillon")
	if lacks := g.Unsupported(everything); lacks != nil || g.LimitsError() != nil {
		t.Errorf("lacks %v: %v", lacks, g.LimitsError())
	}

	x, err := g.Acquire(everything)
	if err != nil {
		t.Fatal(err)
	}

	if x.FD() < 0 || x.Joins() {
		t.Error("a process is not started in its v2 group")
	}

	const dir = "unified/carillon/carillon-n1-i1"
	for file, want := range map[string]string{
		"unified/carillon/cgroup.subtree_control": "+memory +cpu +pids",
		dir + "/cgroup.subtree_control":           "+memory +cpu +pids",
		dir + "/limited/cgroup.subtree_control":   "+memory +cpu +pids",
		dir + "/plain/cgroup.subtree_control":     "", // groups without limits need no controllers
		dir + "/limited/1/memory.max":             "67108864",
		dir + "/limited/1/memory.oom.group":       "1",
		dir + "/limited/1/memory.swap.max":        "0",
		dir + "/limited/1/cpu.max":                "150000 100000",
		dir + "/limited/1/pids.max":               "20",
	} {
		if got := f.read(file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}

	f.write(dir+"/limited/1/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n")
	f.write(dir+"/limited/1/memory.peak", "67108864\n")
	f.write(dir+"/limited/1/pids.events", "max 7\n")
	f.write(dir+"/limited/1/cpu.stat", "usage_usec 1500000\nuser_usec 1\n")

	if u := x.Usage(); u.OOMKills != 3 || !u.MemoryFull || u.MemoryPeak != 64<<20 || u.Refused != 7 || u.CPU.Milliseconds() != 1500 {
		t.Errorf("used %+v", u)
	}
}

func TestLimits_OfAServiceThatNothingIsDelegatedTo(t *testing.T) {
	t.Parallel()
	g := service(t).open(Auto)
	if !g.Any() || g.LimitsError() == nil {
		t.Errorf("groups: %v; why no limits: %v", g.Any(), g.LimitsError())
	}

	if lacks := g.Unsupported(everything); !slices.Equal(lacks, []string{"memory", "swap", "cpu", "pids"}) {
		t.Errorf("lacks %v", lacks)
	}

	x, err := g.Acquire(everything) // processes are found and killed in it nevertheless
	if err != nil || x.FD() < 0 {
		t.Errorf("no group: %v", err)
	}
}

// TestOpen_LeavesTheGroupAboveToNobody tests that no process is left in the group above groups with controllers.
func TestOpen_LeavesTheGroupAboveToNobody(t *testing.T) {
	t.Parallel()
	f := service(t)
	dir := f.root + "/unified/system.slice/carillon.service"
	h := host{v2: dir}
	f.write("unified/system.slice/carillon.service/daemon/cgroup.procs", "")
	f.write("unified/system.slice/carillon.service/cgroup.procs", "")

	if err := h.moveToLeaf(dir); err != nil {
		t.Error(err)
	}

	f.write("unified/system.slice/carillon.service/cgroup.procs", "4711\n") // with ordinary files, the process stays

	if err := h.moveToLeaf(dir); err == nil {
		t.Error("a process in the group above is no fault")
	}

	if got := f.read("unified/system.slice/carillon.service/daemon/cgroup.procs"); got != "4711" {
		t.Errorf("moved %q", got)
	}
}

func TestLimits_OfV1BesideV2(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.v2files = v2base
	f.mounted("4:memory:/process/7\n3:cpu:/\n2:pids:/\n0::/\n", "unified", "memory", "cpu", "pids")
	f.write("unified/cgroup.controllers", "hugetlb\n")
	g := f.open(Auto)

	x, err := g.Acquire(everything)
	if err != nil {
		t.Fatal(err)
	}

	if x.FD() < 0 || !x.Joins() {
		t.Error("a process is not started in its v2 group, or does not join those of v1")
	}

	for file, want := range map[string]string{
		"memory/process/7/carillon-n1-i1/1/memory.limit_in_bytes":       "67108864", // below the daemon's own group
		"memory/process/7/carillon-n1-i1/1/memory.memsw.limit_in_bytes": "67108864",
		"cpu/carillon-n1-i1/1/cpu.cfs_quota_us":                         "150000",
		"cpu/carillon-n1-i1/1/cpu.cfs_period_us":                        "100000",
		"pids/carillon-n1-i1/1/pids.max":                                "20",
	} {
		if got := f.read(file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}

	if err := x.Join(os.Getpid()); err != nil {
		t.Fatal(err)
	}

	f.write("memory/process/7/carillon-n1-i1/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	f.write("memory/process/7/carillon-n1-i1/1/memory.max_usage_in_bytes", "1000000\n")
	f.write("pids/carillon-n1-i1/1/pids.events", "max 4\n")

	if u := x.Usage(); u.OOMKills != 2 || u.MemoryFull || u.MemoryPeak != 1000000 || u.Refused != 4 {
		t.Errorf("used %+v", u)
	}

	f.write("memory/process/7/carillon-n1-i1/1/memory.failcnt", "1\n")

	if u := x.Usage(); !u.MemoryFull {
		t.Errorf("used %+v", u)
	}

	// Groups without limits would cost time, and count kills that have another cause.
	if x, err = g.Acquire(Limits{PIDs: 20}); err != nil || len(x.joined) != 1 {
		t.Errorf("with a limit of processes alone it joins %v, %v", x.joined, err)
	}
}

// If a v1 group cannot be joined, the process stays in the group in which it is found.
func TestGroup_HoldsWhatJoinedAPart(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.memory = f.memory[1:] // without cgroup.procs
	f.mounted("4:memory:/\n2:freezer:/\n", "freezer", "memory")

	x, err := f.open(Auto).Acquire(Limits{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}

	if x.Holds() {
		t.Error("it holds a process before one has joined")
	}

	if err := x.Join(os.Getpid()); err == nil || !x.Holds() {
		t.Errorf("joined: %v; holds it: %v", err, x.Holds())
	}
}

func TestGroup_OfV1Alone(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.mounted("2:freezer:/\n", "freezer")
	g := f.open(Auto)

	x, err := g.Acquire(Limits{})
	if err != nil {
		t.Fatal(err)
	}

	const dir = "freezer/carillon-n1-i1/plain/1"

	if x.FD() >= 0 || !x.Joins() || !x.Empty() {
		t.Error("a process does not join the freezer's group, or that is not empty")
	}

	if err := x.Freeze(); err != nil || f.read(dir+"/freezer.state") != "FROZEN" {
		t.Errorf("not frozen: %v", err)
	}

	if err := x.Kill(); err != nil || f.read(dir+"/freezer.state") != "THAWED" { // frozen processes would not die
		t.Errorf("killed, but not thawed: %v", err)
	}

	if lacks := g.Unsupported(everything); len(lacks) != 4 {
		t.Errorf("lacks %v", lacks)
	}
}

func TestOpen_WithoutControlGroups(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.mounted("")

	for _, setting := range []string{Auto, Off} {
		g := f.open(setting)
		if g.Any() || g.LimitsError() == nil || g.Roots() != nil || len(g.Unsupported(everything)) != 4 {
			t.Errorf("%s: groups %v, why not: %v", setting, g.Roots(), g.LimitsError())
		}

		if _, err := g.Acquire(Limits{}); err == nil {
			t.Errorf("%s: a group was taken", setting)
		}
	}

	if _, err := Open(Config{Setting: "/carillon", Node: "n1", Instance: "i1", proc: f.root + "/proc", mkdir: f.mkdir}); err == nil {
		t.Error("a path without control groups is no fault")
	}

	var none *Groups
	if none.Any() || none.LimitsError() == nil || none.Close() != nil || none.ClearFormer() != nil || none.Quarantined() != 0 || len(none.Unsupported(everything)) != 4 {
		t.Error("no groups are some")
	}
}

func TestCheckSetting(t *testing.T) {
	t.Parallel()

	for setting, right := range map[string]bool{
		"auto": true, "off": true, "/carillon": true, "/a.slice/b": true,
		"": false, "on": false, "carillon": false, "/": false, "/a/../b": false, "/a/": false, "/sys/fs/cgroup/x": false,
	} {
		if err := CheckSetting(setting); (err == nil) != right {
			t.Errorf("%q: %v", setting, err)
		}
	}
}
