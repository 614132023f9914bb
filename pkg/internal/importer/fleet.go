package importer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// HostResult is what the crontabs of one host became.
type HostResult struct {
	Host   string // the value of the label host of its nodes
	Dir    string // what the names of its files begin with, with the slash at its end
	Result Result
}

// HostGroup is a label that the nodes of some hosts have, and no others.
type HostGroup struct {
	Label, Value string
	Hosts        []string
}

// Selector selects the nodes of the group.
func (g HostGroup) Selector() string { return g.Label + " = " + g.Value }

// TreeName converts the name of a tree of hosts to a value of LabelTree.
func TreeName(name string) string { return cmp.Or(clipSlug(name, task.MaxLabel), "hosts") }

// MergeHosts joins the results of hosts. Jobs that differ only in their host become one task, which runs on all of these
// hosts. Remarks that several hosts have in the same file become one.
//
// The task of a single host has the same name as if only the crontabs of that host had been imported. The name of a task for
// several hosts does not contain a host, so that it stays the same when another host gets the line. If different tasks had
// the same name, all but the first contain their first host.
func MergeHosts(hosts []HostResult, groups []HostGroup, o Options) Result {
	hosts = slices.SortedFunc(slices.Values(hosts), func(a, b HostResult) int { return strings.Compare(a.Host, b.Host) })

	m := &hostMerger{Options: o, groups: groups, jobs: map[string]*sharedJob{}}
	for _, h := range hosts {
		m.addHost(h)
	}

	m.noteStaggered()
	r := Result{Refusals: m.refusals.list, Notes: m.notes.list}
	names := map[string]bool{}
	for _, s := range m.order {
		if n := len(m.selectHosts(s.hosts)); n > task.MaxSelector {
			r.addRefusal(s.Place, "the names of its %d hosts do not fit in a selector of %d bytes: give their nodes a label, and state it with --group", len(s.hosts), task.MaxSelector)
			continue
		}

		r.addJob(m.finish(s, names))
	}

	return r
}

// JoinNumbered adds the result of another crontab of the same host. If a name is already in use, the job gets the next number.
func (r *Result) JoinNumbered(other Result) {
	taken := map[string]bool{}
	for _, j := range r.Jobs {
		taken[j.Spec.Name] = true
	}

	for i := range other.Jobs {
		j := &other.Jobs[i]
		name, tag := j.Spec.Name, j.tag
		for n := 2; taken[j.Spec.Name]; n++ {
			j.Spec.Name, j.tag = fmt.Sprintf("%s-%d", name, n), fmt.Sprintf("%s-%d", tag, n)
		}
		taken[j.Spec.Name] = true
	}

	r.Join(other)
}

// sharedJob is a job that one or more hosts have.
type sharedJob struct {
	Job
	hosts []string
}

// hostMerger holds the state of MergeHosts.
type hostMerger struct {
	Options
	groups          []HostGroup
	jobs            map[string]*sharedJob // by what identifies a job, except for its host
	order           []*sharedJob
	refusals, notes sharedRemarks
}

// addHost adds the result of a host.
func (m *hostMerger) addHost(h HostResult) {
	m.refusals.add(h.Dir, h.Result.Refusals)
	m.notes.add(h.Dir, h.Result.Notes)

	for _, j := range h.Result.Jobs {
		key := sharedKey(j)
		s := m.jobs[key]

		switch {
		case s == nil:
			s = &sharedJob{Job: j, hosts: []string{h.Host}}
			m.jobs[key] = s
			m.order = append(m.order, s)
		case slices.Contains(s.hosts, h.Host):
			m.notes.add(h.Dir, []Refusal{{j.Place, "is in another file of the host, too: cron runs it twice at the same time, the task runs once"}})
		default:
			s.hosts = append(s.hosts, h.Host)
			s.Others++
			s.Notes = append(s.Notes, slices.DeleteFunc(j.Notes, func(n string) bool { return slices.Contains(s.Notes, n) })...)
		}
	}
}

// noteStaggered adds a note about tasks that differ only in their host and their schedule.
func (m *hostMerger) noteStaggered() {
	const several = 3

	keyOf := func(s *sharedJob) string {
		j := s.Job
		j.Spec.Schedule, j.Spec.DST = nil, task.DST{}
		return sharedKey(j)
	}

	same := map[string]int{}
	for _, s := range m.order {
		same[keyOf(s)]++
	}

	for _, s := range m.order {
		key := keyOf(s)
		if n := same[key]; n >= several {
			m.notes.add("", []Refusal{{Place{File: s.File, Line: s.Line}, fmt.Sprintf("%d tasks differ only in their host and schedule: if the schedules differ so that the hosts do not start at once, write the same line on all hosts, and set target.stagger", n)}})
		}
		same[key] = 0 // one note for all of them
	}
}

// sharedKey returns what identifies a job, except for its host. The comment above a line is not a part of it.
func sharedKey(j Job) string {
	s := j.Spec
	s.Name, s.Description, s.Target = "", "", task.Defaults().Target
	s.Schedule = slices.Sorted(slices.Values(s.Schedule))
	s.Labels = maps.Clone(s.Labels)
	delete(s.Labels, LabelNode)

	b, err := json.Marshal(s)
	if err != nil {
		return j.Spec.Name // not possible: a spec consists of plain values
	}

	return j.what + "\x00" + j.tag + "\x00" + string(b)
}

// finish returns the task for a job, with a name that is not in names yet.
func (m *hostMerger) finish(s *sharedJob, names map[string]bool) Job {
	j := s.Job
	j.Spec.Labels = maps.Clone(j.Spec.Labels)
	j.Spec.Labels[LabelTree] = m.Tree

	single := jobName(joinName(m.Prefix, s.hosts[0]), j.what, j.tag)
	candidates := []string{single}

	if len(s.hosts) > 1 {
		delete(j.Spec.Labels, LabelNode)
		j.Spec.Target.Selector = m.selectHosts(s.hosts)
		if !j.Spec.Schedule.AtBoot() { // each host that boots has a run of its own
			j.Spec.Target.Count = task.All
		}
		candidates = []string{jobName(m.Prefix, j.what, j.tag), single}

		if j.Spec.Jitter > 0 || slices.ContainsFunc(j.Spec.Schedule, schedule.UsesHash) {
			j.Notes = append(j.Notes, "starts on all hosts at the same time, while each cron waits for a random time of its own: to spread the hosts, set target.stagger")
		}
	}

	j.Spec.Name = candidates[0]
	for n := 1; names[j.Spec.Name]; n++ {
		if j.Spec.Name = candidates[len(candidates)-1]; n >= len(candidates) {
			j.Spec.Name = fmt.Sprintf("%s-%d", j.Spec.Name, n-len(candidates)+2)
		}
	}
	names[j.Spec.Name] = true

	return j
}

// selectHosts returns a selector for the nodes of hosts.
func (m *hostMerger) selectHosts(hosts []string) string {
	for _, g := range m.groups {
		if slices.Equal(slices.Sorted(slices.Values(g.Hosts)), hosts) {
			return g.Selector()
		}
	}

	return "host in (" + strings.Join(hosts, ", ") + ")"
}

// SelectedHosts returns the hosts in a selector that the import has written, or nil for any other one.
func SelectedHosts(selector string) []string {
	if h, ok := strings.CutPrefix(selector, "host = "); ok && !strings.ContainsAny(h, ", ") {
		return []string{h}
	}

	list, ok := strings.CutPrefix(selector, "host in (")
	list, closed := strings.CutSuffix(list, ")")
	if !ok || !closed || strings.ContainsAny(list, "()") {
		return nil
	}

	return strings.Split(list, ", ")
}

// sharedRemarks are remarks of several hosts. A remark that several hosts have in the same file is in the list once.
type sharedRemarks struct {
	list []Refusal
	at   map[sharedRemark]int // the indexes of list
}

// sharedRemark identifies a remark. Lines are not compared, because the same line may have another number on another host.
type sharedRemark struct {
	file, why string
	nth       int // a host can have a remark several times
}

// add adds the remarks of a host, whose files are in dir.
func (s *sharedRemarks) add(dir string, remarks []Refusal) {
	if s.at == nil {
		s.at = map[sharedRemark]int{}
	}

	times := map[sharedRemark]int{}
	for _, r := range remarks {
		key := sharedRemark{file: strings.TrimPrefix(r.File, dir), why: r.Why}
		times[key]++
		key.nth = times[key]

		if at, ok := s.at[key]; ok {
			s.list[at].Others++
			continue
		}

		s.at[key] = len(s.list)
		s.list = append(s.list, r)
	}
}
