package chaos_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A cluster of daemons on a real etcd of three members keeps its guarantees under all faults. In CI a few quick
// faults are injected. CARILLON_CHAOS_DURATION requests a long run, CARILLON_CHAOS_SEED another seed,
// CARILLON_CHAOS_FAULTS only some kinds of faults, and CARILLON_CHAOS_HOLD faults of that duration.
func TestChaos_PromisesHold(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster of whole daemons: make test-cluster, make chaos")
	}

	began := time.Now()
	length := duration(t, "CARILLON_CHAOS_DURATION")
	faults := chosen(t, os.Getenv("CARILLON_CHAOS_FAULTS"), length > 0)

	s := size{nodes: 3, shards: 8, load: .2}
	if length > 0 {
		s = size{nodes: 4, shards: 16, load: 1, smallDisk: true, long: true}
	}

	w := newWorld(t, seed(t), s)
	w.say("seed %d, %d nodes, %s: in %s", w.seed, s.nodes, w.mark, w.dir)
	calls := w.call()
	done, off := w.run(faults, length)
	v := w.judge(calls)
	sum := w.summarize(done, off, v, time.Since(began))
	t.Logf("\n%s\n%s", v.report.String(), sum)

	if path := os.Getenv("CARILLON_CHAOS_REPORT"); path != "" {
		w.must(sum.save(path))
	}

	if sum.Faults == 0 {
		t.Error("no fault counts: the run proves nothing")
	}

	if t.Failed() {
		for _, in := range done {
			t.Log(in)
		}
	}
}

func duration(t *testing.T, name string) time.Duration {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}

	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%s: not a duration such as 20m", name, v)
	}

	return d
}

func seed(t *testing.T) uint64 {
	v := os.Getenv("CARILLON_CHAOS_SEED")
	if v == "" {
		return 1
	}

	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("CARILLON_CHAOS_SEED=%s: not a whole number", v)
	}

	return n
}

// chosen returns the faults with the given names, separated by commas. Without names, it returns all, or those that
// are quick.
func chosen(t *testing.T, names string, all bool) (some []*fault) {
	for _, f := range allFaults() {
		if names == "" && (all || f.quick) || slices.Contains(strings.Split(names, ","), f.name) {
			some = append(some, f)
		}
	}

	if d := duration(t, "CARILLON_CHAOS_HOLD"); d > 0 {
		for _, f := range some {
			f.hold = [2]time.Duration{d, d}
		}
	}

	if len(some) == 0 {
		t.Fatalf("CARILLON_CHAOS_FAULTS=%s: no such fault", names)
	}

	return some
}

// docs/internals/chaos.md lists every kind of fault.
func TestChaos_DocsNameEveryFault(t *testing.T) {
	doc, err := os.ReadFile("../../../../docs/internals/chaos.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, f := range allFaults() {
		if line := "| `" + f.name + "` | " + f.group + " | " + f.what + " |"; !strings.Contains(string(doc), line) {
			t.Errorf("docs/internals/chaos.md lacks:\n%s", line)
		}
	}
}
