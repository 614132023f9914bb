package importer_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/task"
)

// fleetHost is a host of a tree. Its crontab is /etc/crontab.
type fleetHost struct{ name, zone, crontab string }

// merge imports the crontabs of hosts.
func merge(t *testing.T, prefix string, groups []importer.HostGroup, hosts ...fleetHost) importer.Result {
	t.Helper()
	var results []importer.HostResult
	for _, h := range hosts {
		o := importer.Options{Host: h.name, Prefix: strings.Trim(prefix+"-"+h.name, "-"), Timezone: h.zone}
		if o.Timezone == "" {
			o.Timezone = "UTC"
		}

		dir := "hosts/" + h.name + "/"
		results = append(results, importer.HostResult{Host: h.name, Dir: dir, Result: importer.Crontab(dir+"etc/crontab", h.crontab, ofSystem, o)})
	}

	return importer.MergeHosts(results, groups, importer.Options{Prefix: prefix, Tree: importer.TreeName(cmp.Or(prefix, "hosts"))})
}

// targets returns the tasks of a result as lines with what a selector, the schedule and the name are, sorted.
func targets(r importer.Result) (lines []string) {
	for _, j := range r.Jobs {
		name := j.Spec.Name
		if at := strings.LastIndex(name, "-"); at > 0 && !strings.HasSuffix(name, "-2") {
			name = name[:at] // without the hash
		}
		lines = append(lines, fmt.Sprintf("%s: %s, %s %s, count %s", name, j.Spec.Target.Selector, strings.Join(j.Spec.Schedule, "; "), j.Spec.Timezone, j.Spec.Target.Count))
	}

	slices.Sort(lines)

	return lines
}

// Verifies: G45
func TestMergeHosts_TheSameLineIsOneTask(t *testing.T) {
	const line, later, other = "0 3 * * * root /bin/a\n", "0 4 * * * root /bin/a\n", "0 3 * * * www-data /bin/a\n"

	for name, c := range map[string]struct {
		hosts []fleetHost
		want  []string
	}{
		"the same line": {
			[]fleetHost{{"web2", "", line}, {"web1", "", line}, {"db1", "", "# ours\n" + line}},
			[]string{"crontab-a: host in (db1, web1, web2), 0 3 * * * UTC, count all"},
		},
		"one host": {
			[]fleetHost{{"web1", "", line}, {"web2", "", "\n"}},
			[]string{"web1-crontab-a: host = web1, 0 3 * * * UTC, count 1"},
		},
		"another schedule": {
			[]fleetHost{{"a", "", line}, {"b", "", line}, {"c", "", later}},
			[]string{"c-crontab-a: host = c, 0 4 * * * UTC, count 1", "crontab-a: host in (a, b), 0 3 * * * UTC, count all"},
		},
		"another zone": {
			[]fleetHost{{"a", "", line}, {"b", "", line}, {"c", "Asia/Tokyo", line}, {"d", "Asia/Tokyo", line}},
			[]string{"c-crontab-a: host in (c, d), 0 3 * * * Asia/Tokyo, count all", "crontab-a: host in (a, b), 0 3 * * * UTC, count all"},
		},
		"another user": {
			[]fleetHost{{"a", "", line}, {"b", "", other}},
			[]string{"a-crontab-a: host = a, 0 3 * * * UTC, count 1", "b-crontab-a: host = b, 0 3 * * * UTC, count 1"},
		},
		"another environment": {
			[]fleetHost{{"a", "", line}, {"b", "", "PATH=/opt/bin\n" + line}},
			[]string{"a-crontab-a: host = a, 0 3 * * * UTC, count 1", "b-crontab-a: host = b, 0 3 * * * UTC, count 1"},
		},
		"at boot, which gives each host a run of its own": {
			[]fleetHost{{"a", "", "@reboot root /bin/a\n"}, {"b", "", "@reboot root /bin/a\n"}},
			[]string{"crontab-a: host in (a, b), @reboot UTC, count 1"},
		},
		"twice on one host": {
			[]fleetHost{{"a", "", line + later}, {"b", "", line}, {"c", "", later + line}, {"d", "", line + later}},
			[]string{"b-crontab-a: host = b, 0 3 * * * UTC, count 1", "crontab-a: host in (a, c, d), 0 3 * * *; 0 4 * * * UTC, count all"},
		},
	} {
		r := merge(t, "", nil, c.hosts...)
		if got := targets(r); !slices.Equal(got, c.want) || len(r.Refusals) > 0 {
			t.Errorf("%s: %q, want %q; refused: %v", name, got, c.want, r.Refusals)
		}
	}
}

// The name of a task must not depend on how many hosts have the line, and that of a single host is the name that an import
// of only this host gives it.
func TestMergeHosts_NamesAreStable(t *testing.T) {
	const line = "0 3 * * * root /bin/a\n"
	two := merge(t, "", nil, fleetHost{"web1", "", line}, fleetHost{"web2", "", line})
	three := merge(t, "", nil, fleetHost{"app1", "", line}, fleetHost{"web1", "", line}, fleetHost{"web2", "", "\n" + line})
	if a, b := two.Jobs[0].Spec.Name, three.Jobs[0].Spec.Name; a != b {
		t.Errorf("%s became %s with another host", a, b)
	}

	single := merge(t, "", nil, fleetHost{"web1", "", line}).Jobs[0].Spec
	alone := importer.Crontab("/etc/crontab", line, ofSystem, importer.Options{Host: "web1", Prefix: "web1", Timezone: "UTC"}).Jobs[0].Spec
	alone.Labels[importer.LabelTree] = "hosts"
	if d := task.Differences(alone, single); len(d) > 0 {
		t.Errorf("a single host differs from an import of its crontab: %v", d)
	}

	labelled := merge(t, "eu", nil, fleetHost{"web1", "", line}, fleetHost{"web2", "", line}).Jobs[0].Spec
	if labelled.Name != "eu-"+two.Jobs[0].Spec.Name || labelled.Labels[importer.LabelTree] != "eu" || labelled.Labels[importer.LabelNode] != "" {
		t.Errorf("with a prefix: %s, labels %v", labelled.Name, labelled.Labels)
	}
}

func TestMergeHosts_CountsRemarksThatHostsShare(t *testing.T) {
	const text = "0 3 * * * root /bin/a &\nnonsense\n"
	r := merge(t, "", nil, fleetHost{"a", "", text}, fleetHost{"b", "", "\n" + text}, fleetHost{"c", "", text + "nonsense\n"})
	if len(r.Refusals) != 2 || r.Refusals[0].Place.String() != "hosts/a/etc/crontab:2 (and on 2 other hosts)" || r.Refusals[1].Place.String() != "hosts/c/etc/crontab:3" {
		t.Errorf("refused: %v", r.Refusals)
	}
	if len(r.Jobs) != 1 || len(r.Jobs[0].Notes) != 1 || r.Jobs[0].Place.String() != "hosts/a/etc/crontab:1 (and on 2 other hosts)" {
		t.Errorf("jobs: %v", r.Jobs)
	}
}

func TestMergeHosts_SelectsByLabelIfItIsExactlyTheseHosts(t *testing.T) {
	const line = "0 3 * * * root /bin/a\n"
	groups := []importer.HostGroup{{Label: "role", Value: "web", Hosts: []string{"web2", "web1"}}}
	web1, web2, db := fleetHost{"web1", "", line}, fleetHost{"web2", "", line}, fleetHost{"db1", "", line}

	if got := merge(t, "", groups, web1, web2).Jobs[0].Spec.Target.Selector; got != "role = web" {
		t.Errorf("the hosts of the group: %s", got)
	}
	if got := merge(t, "", groups, web1, web2, db).Jobs[0].Spec.Target.Selector; got != "host in (db1, web1, web2)" {
		t.Errorf("more hosts than the group has: %s", got)
	}

	var many []fleetHost
	for n := range 200 {
		many = append(many, fleetHost{fmt.Sprintf("server-%03d", n), "", line})
	}
	if r := merge(t, "", nil, many...); len(r.Jobs) > 0 || len(r.Refusals) != 1 || !strings.Contains(r.Refusals[0].Why, "--group") {
		t.Errorf("too many hosts for a selector: %d jobs, refused: %v", len(r.Jobs), r.Refusals)
	}
}

func TestMergeHosts_NotesWhatEachHostChoseAtRandom(t *testing.T) {
	for _, line := range []string{"0~30 3 * * * root /bin/a\n", "RANDOM_DELAY=30\n0 3 * * * root /bin/a\n"} {
		r := merge(t, "", nil, fleetHost{"a", "", line}, fleetHost{"b", "", line})
		if notes := strings.Join(r.Jobs[0].Notes, "\n"); !strings.Contains(notes, "target.stagger") {
			t.Errorf("%q: notes: %s", line, notes)
		}
	}
}

// Administrators give each host a minute of its own, so that they do not all start at once. A task has target.stagger.
func TestMergeHosts_NotesTasksThatDifferOnlyInTheirSchedule(t *testing.T) {
	r := merge(t, "", nil, fleetHost{"a", "", "1 3 * * * root /bin/a\n"}, fleetHost{"b", "", "2 3 * * * root /bin/a\n"}, fleetHost{"c", "", "3 3 * * * root /bin/a\n5 * * * * root /bin/b\n"})
	if len(r.Jobs) != 4 || len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0].Why, "3 tasks differ only") {
		t.Errorf("%d jobs, notes: %v", len(r.Jobs), r.Notes)
	}
}

// Two files of a host may have jobs that would get the same name.
func TestResult_JoinNumbered(t *testing.T) {
	o := importer.Options{Host: "a", Prefix: "a", Timezone: "UTC"}
	r := importer.Crontab("hosts/a/etc/cron.d/ann", "0 3 * * * ann /bin/a\n", ofSystem, o)
	r.JoinNumbered(importer.Crontab("hosts/a/var/spool/cron/ann", "0 4 * * * /bin/a\n", ofAnn, o))
	if len(r.Jobs) != 2 || len(r.Refusals) > 0 || r.Jobs[1].Spec.Name != r.Jobs[0].Spec.Name+"-2" {
		t.Fatalf("%v, refused: %v", r.Jobs, r.Refusals)
	}

	merged := importer.MergeHosts([]importer.HostResult{{Host: "a", Dir: "hosts/a/", Result: r}}, nil, importer.Options{})
	if len(merged.Jobs) != 2 || merged.Jobs[1].Spec.Name != r.Jobs[1].Spec.Name {
		t.Errorf("merged: %v", merged.Jobs)
	}
}

func TestSelectedHosts(t *testing.T) {
	for selector, want := range map[string][]string{
		"host = a": {"a"}, "host in (a, b)": {"a", "b"}, "node = a": nil, "host in (a), role = b": nil, "host = a, role = b": nil, "": nil, "role = web": nil,
	} {
		if got := importer.SelectedHosts(selector); !slices.Equal(got, want) {
			t.Errorf("%q: %q", selector, got)
		}
	}
}
