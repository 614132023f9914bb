package hostfacts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// hostOf returns a host with these files.
func hostOf(t *testing.T, files map[string]string) *host {
	h := newHost(t.TempDir())
	h.root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(h.root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

const meminfo = "MemTotal:        8388608 kB\nMemFree:          100000 kB\nMemAvailable:    4194304 kB\n"

func TestFacts_OfAMachine(t *testing.T) {
	t.Parallel()
	f := newHost(t.TempDir()).measureFacts(t.Context()) // the host that runs the test
	if f.CPUs < 1 || f.Disk < 1 || f.DiskFree == nil || *f.DiskFree > f.Disk {
		t.Errorf("%+v", f)
	}
	f = hostOf(t, map[string]string{"proc/meminfo": meminfo, "proc/loadavg": "0.52 1.25 0.00 1/100 4242\n"}).measureFacts(t.Context())
	if f.Memory != 8<<30 || *f.MemoryFree != 4<<30 || *f.Load1 != 0.52 || *f.Load5 != 1.25 || *f.Load15 != 0 {
		t.Errorf("%+v", f)
	}
	for name, files := range map[string]map[string]string{
		"none": nil, "empty": {"proc/meminfo": "", "proc/loadavg": ""}, "odd": {"proc/meminfo": "MemTotal: many kB\n", "proc/loadavg": "NaN -1 x"},
	} {
		if f := hostOf(t, files).measureFacts(t.Context()); f.Memory != 0 || f.MemoryFree != nil || f.Load1 != nil || f.Load5 != nil || f.Load15 != nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// A container may have less memory than its machine.
func TestFacts_KnowTheLimitsOfCgroups(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files       map[string]string
		total, free int64 // MiB
	}{
		"v2": {map[string]string{"proc/self/cgroup": "0::/system.slice/carillon.service\n",
			"sys/fs/cgroup/system.slice/carillon.service/memory.max": "1073741824\n", "sys/fs/cgroup/system.slice/carillon.service/memory.current": "536870912\n",
			"sys/fs/cgroup/system.slice/carillon.service/memory.stat": "anon 1\ninactive_file 104857600\n"}, 1024, 612},
		"v2, of the parent": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.current": "1\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "1\n"}, 1024, 1023},
		"v1, in a container": {map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1048576\n"}, 2048, 1025},
		"v1, without a limit": {map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n"}, 8192, 4096},
		"the machine has less left": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "7516192768\n", "sys/fs/cgroup/a/memory.current": "0\n"}, 7168, 4096},
		"over its limit":            {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/memory.current": "2097152\n"}, 1, 0},
	} {
		c.files["proc/meminfo"] = meminfo
		if f := hostOf(t, c.files).measureFacts(t.Context()); f.Memory>>20 != c.total || *f.MemoryFree>>20 != c.free {
			t.Errorf("%s: %d MiB, %d free; want %d, %d", name, f.Memory>>20, *f.MemoryFree>>20, c.total, c.free)
		}
	}
}

// The number of processors is that of the container, but the load is that of the machine.
func TestFacts_KnowTheQuotasOfCgroups(t *testing.T) {
	t.Parallel()
	all := runtime.NumCPU()
	const v2, v1 = "0::/a/b\n", "3:cpu,cpuacct:/docker/x\n0::/\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"none":               {map[string]string{"proc/self/cgroup": v2, "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, all},
		"one":                {map[string]string{"proc/self/cgroup": v2, "sys/fs/cgroup/a/b/cpu.max": "100000 100000\n"}, 1},
		"of the parent":      {map[string]string{"proc/self/cgroup": v2, "sys/fs/cgroup/a/cpu.max": "190000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 1},
		"less than one":      {map[string]string{"proc/self/cgroup": v2, "sys/fs/cgroup/a/cpu.max": "5000 100000\n"}, 1},
		"more than there is": {map[string]string{"proc/self/cgroup": v2, "sys/fs/cgroup/a/cpu.max": "409600000 100000\n"}, all},
		"damaged":            {map[string]string{"proc/self/cgroup": v2, "sys/fs/cgroup/a/cpu.max": "\n", "sys/fs/cgroup/a/b/cpu.max": "100000 0"}, all},
		"v1":                 {map[string]string{"proc/self/cgroup": v1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n"}, 1},
		"v1, both names":     {map[string]string{"proc/self/cgroup": v1, "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "50000\n"}, 1},
		"v1, without":        {map[string]string{"proc/self/cgroup": v1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, all},
	} {
		c.files["proc/stat"] = "cpu  1 2\n" + strings.Repeat("cpu7 1 2\n", all+3) + "intr 1\n"
		if f := hostOf(t, c.files).measureFacts(t.Context()); f.CPUs != c.want || f.HostCPUs != all+3 {
			t.Errorf("%s: %d of %d; want %d of %d", name, f.CPUs, f.HostCPUs, c.want, all+3)
		}
	}
}

// A file system that hangs delays neither the other facts nor the end of the node, and gets no further calls.
func TestFacts_GoOnWhileTheFileSystemHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, back := newHost("/"), make(chan struct{})
		var asked atomic.Int32
		h.statfs = func(string) (int64, int64, error) {
			if asked.Add(1) == 1 {
				<-back
			}
			return 10 << 30, 5 << 30, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		f := &Monitor{host: h, limits: Limits{DiskFree: 1}, changed: func() {}, log: zap.NewNop(), first: make(chan struct{})}
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		time.Sleep(time.Minute)
		if known, _ := f.Known(); known == nil || known.Disk != 0 || known.CPUs == 0 || asked.Load() != 1 {
			t.Errorf("meanwhile: %+v, asked %d times", known, asked.Load())
		}
		close(back)
		time.Sleep(time.Minute)
		if known, _ := f.Known(); known.Disk != 10<<30 || *known.DiskFree != 5<<30 {
			t.Errorf("afterwards: %+v", known)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestLimits_PressWithHysteresis(t *testing.T) {
	t.Parallel()
	l := Limits{Load: 4, MemoryFree: 100 << 20, DiskFree: 1 << 30}
	told := 0
	f := &Monitor{limits: l, changed: func() { told++ }, log: zap.NewNop()}
	for i, step := range []struct {
		Load    float64
		mem     int64 // MiB
		disk    int64 // MiB; -1: unknown
		want    string
		newsToo int
	}{
		{Load: 1, mem: 500, disk: 5000},
		{Load: 4, mem: 100, disk: 1024},
		{Load: 4.1, mem: 99, disk: 1024, want: "load1 memory_free", newsToo: 1},
		{Load: 3.7, mem: 105, disk: 1024, want: "load1 memory_free", newsToo: 1}, // below the limit, but not by enough
		{Load: 3.5, mem: 105, disk: 1000, want: "memory_free disk_free", newsToo: 2},
		{Load: 3.9, mem: 111, disk: 1100, want: "disk_free", newsToo: 3},
		{Load: 3.9, mem: 111, disk: -1, want: "disk_free", newsToo: 3}, // unknown
		{Load: 3.9, mem: 111, disk: 1200, newsToo: 4},
		{Load: 3.9, mem: 101, disk: -1, newsToo: 4},
	} {
		mem, disk := step.mem<<20, step.disk<<20
		now := &task.Facts{Load1: &step.Load, Memory: 1 << 30, MemoryFree: &mem}
		if step.disk >= 0 {
			now.Disk, now.DiskFree = 1<<40, &disk
		}
		f.setFacts(now)
		if _, exceeded := f.Known(); strings.Join(exceeded, " ") != step.want || told != step.newsToo {
			t.Errorf("step %d: %q is exceeded, told %d times; want %q, %d", i, exceeded, told, step.want, step.newsToo)
		}
	}
	if none := (Limits{}).overLimits(&task.Facts{Load1: new(float64)}, slices.Clone([]string{task.FactLoad1})); none != nil {
		t.Errorf("without limits %v is exceeded", none)
	}
}
