package task

import (
	"encoding/json"
	"testing"
)

func TestSelector_ComparesFactsAndNumericLabels(t *testing.T) {
	t.Parallel()
	load, free, full := 0.5, int64(4<<30), int64(0)
	n := &Node{
		Labels: map[string]string{"rack": "12", "ram": "64Gi", "cpus": "2", "zone": "eu-1", "speed": "2.5"},
		Facts:  &Facts{CPUs: 8, Memory: 16 << 30, MemoryFree: &free, Disk: 100 << 30, DiskFree: &full, Load1: &load},
	}

	for selector, want := range map[string]bool{
		"cpus >= 8": true, "cpus > 8": false, "cpus < 8": false, "cpus <= 8": true, // the fact, not the label
		"cpus = 2":          true, // the label, as before
		"memory_free > 4Gi": false, "memory_free >= 4Gi": true, "memory > 16G": true, "memory>16G": true,
		"disk_free > 0": false, "disk_free >= 0": true, "disk_free < 1Ki": true,
		"load1 < 4": true, "load1 < 0.5": false, "load1 <= 0.5": true,
		"load5 < 4": false, "load5 >= 0": false, // it is unknown
		"rack > 11": true, "rack > 12": false, "rack <= 12, zone = eu-1": true, "ram > 32Gi": true, "ram > 64Gi": false,
		"speed >= 2.5": true, "zone > 0": false, "none < 5": false, "rack > 1, load1 < 0.1": false,
	} {
		s, err := ParseSelector(selector)
		if err != nil {
			t.Errorf("%q: %v", selector, err)
		} else if s.Accepts(n) != want {
			t.Errorf("%q accepts: %v", selector, !want)
		}
	}

	for selector, want := range map[string]bool{"cpus > 1": true, "rack > 11": true, "load1 < 4": false} {
		s, err := ParseSelector(selector)
		if err != nil || s.Accepts(&Node{Labels: n.Labels}) != (want && selector == "rack > 11") {
			t.Errorf("%q of a node without facts: %v", selector, err)
		}

		if s.Compares() != (selector != "rack > 11") {
			t.Errorf("%q may change its mind: %v", selector, s.Compares())
		}
	}
}

// Tasks have no facts. They are listed by their labels.
func TestSelector_OfTasksComparesLabels(t *testing.T) {
	t.Parallel()
	s, err := ParseSelector("priority >= 5, team = data")
	if err != nil || !s.Matches(map[string]string{"priority": "7", "team": "data"}) || s.Matches(map[string]string{"priority": "4", "team": "data"}) {
		t.Error("labels of tasks are not compared", err)
	}
}

func TestFacts_AreLeftOutOfJSONWhenTheyAreNotKnown(t *testing.T) {
	t.Parallel()

	for name, f := range map[string]*Facts{"{}": {}, `{"cpus":4,"memory":2,"memory_free":0}`: {CPUs: 4, Memory: 2, MemoryFree: new(int64)}} {
		b, err := json.Marshal(f)
		if err != nil || string(b) != name {
			t.Errorf("%s, want %s: %v", b, name, err)
		}
	}

	none := (*Facts)(nil)

	for _, name := range FactNames() {
		if _, ok := none.Fact(name); ok {
			t.Errorf("%s of a node without facts is known", name)
		}

		if _, ok := (&Facts{}).Fact(name); ok {
			t.Errorf("%s that was not measured is known", name)
		}
	}
}

func TestNode_TakesNoRunsUnderPressure(t *testing.T) {
	t.Parallel()
	n := Node{Name: "n1", State: NodeReady, Roles: []string{RoleExecutor}}
	if !n.Takes() {
		t.Fatal("the node takes no runs at all")
	}

	n.Blocked = []string{FactDiskFree}
	if n.Takes() {
		t.Error("the node takes runs")
	}
}
