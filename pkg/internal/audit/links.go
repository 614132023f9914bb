package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/internal/depgraph"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// linkJudge judges the links between tasks: what the spec of a dependent says of its sources, its entry and the records in the
// shards of the sources must say, too. One transaction writes them all. It remembers the sources of each dependent, and nothing of
// other tasks.
type linkJudge struct {
	judge
	dependents map[string]*dependentState // by namespace/name
}

// dependentState is what the audit knows about a dependent.
type dependentState struct {
	ref     record.Ref
	spec    store.Seen
	uid     string
	sources task.Sources
	found   map[string]bool // the sources that have a record of it, or a finding about one

	// entry and links are of its entry, if that has the uid of the spec. records are the records of it that agree with the spec, by
	// source.
	entry   store.Seen
	links   []task.Link
	records map[string]linkRecord

	unreadable bool // the spec cannot be read, so nothing is compared with it
}

// linkRecord is a record of a dependent in the shard of its source.
type linkRecord struct {
	seen       store.Seen
	generation int64 // of the link
}

// sourcesOf returns the uid and the sources in the record of a spec.
func sourcesOf(value []byte) (uid string, sources task.Sources, err error) {
	var t struct {
		UID   string       `json:"uid"`
		After task.Sources `json:"after"`
	}
	err = json.Unmarshal(value, &t)

	return t.UID, t.After, err
}

// addSpec remembers the sources of a task. unreadable states that its spec cannot be read.
func (j *linkJudge) addSpec(ref record.Ref, e *mvccpb.KeyValue, unreadable bool) {
	if !unreadable && !bytes.Contains(e.Value, []byte(`"after"`)) {
		return // like nearly all
	}

	if uid, sources, err := sourcesOf(e.Value); err != nil || len(sources) > 0 {
		j.dependents[ref.String()] = &dependentState{ref: ref, spec: seenRecord(e), uid: uid, sources: sources, found: map[string]bool{}, records: map[string]linkRecord{}, unreadable: err != nil}
	}
}

// checkEntry compares the links of an entry with the spec of its task.
func (j *linkJudge) checkEntry(e *mvccpb.KeyValue, ref record.Ref, entry task.Entry) {
	d := j.dependents[ref.String()]
	if d == nil || d.unreadable || d.uid != entry.UID {
		return // the uids are judged elsewhere
	}

	d.entry, d.links = seenRecord(e), entry.Links

	for _, name := range d.sources.Names() {
		if entry.Link(name) == nil {
			j.addSuspect(kindNoLinkInEntry.newFinding(fmt.Sprintf("task %s runs after %s, but its entry has no link to it", ref, j.ref(ref.Namespace, name)), string(e.Key), d.spec.Key),
				seenRecord(e), d.spec)
		}
	}
}

// checkSubscriber judges the record of a dependent in the shard of its source.
func (j *linkJudge) checkSubscriber(ctx context.Context, s *shardState, e *mvccpb.KeyValue, k record.ShardKey) {
	j.checkNoLease(e)

	source, dependent := j.ref(k.Ref.Namespace, k.Ref.Name), j.ref(k.Ref.Namespace, k.Peer)
	d := j.dependents[dependent.String()]
	if d != nil && d.unreadable {
		return
	}
	if d == nil || d.sources.Find(source.Name) == nil || source.Shard != s.id {
		spec, err := (&keptJudge{j.judge}).readSpec(ctx, dependent)
		if err != nil {
			j.addNote("the spec of %s could not be read: %v", dependent, err)
			return
		}
		j.addSuspect(kindLinkOrphan.newFinding(fmt.Sprintf("the record says that %s runs after %s, but the task does not", dependent, source), string(e.Key)), seenRecord(e), spec)

		return
	}

	d.found[source.Name] = true
	sub, _, err := record.DecodeDependent(j.keys, e)
	why := d.differs(sub.Subscriber, err, source.Name)
	if why == "" {
		d.records[source.Name] = linkRecord{seenRecord(e), sub.Generation}
	} else {
		j.addSuspect(kindLinkMissing.newFinding(fmt.Sprintf("task %s runs after %s, but the record of it %s", dependent, source, why), string(e.Key)), seenRecord(e), d.spec)
	}
}

// differs returns in what the record of a dependent differs from its spec; "": in nothing.
func (d *dependentState) differs(found record.Subscriber, err error, source string) string {
	wanted := d.sources.Find(source)

	switch {
	case err != nil:
		return "cannot be read"
	case found.UID != d.uid:
		return "is that of an earlier task of the name"
	case !wanted.Equal(task.Source{Task: source, When: found.When, Results: found.Results}):
		return "names other ends or results"
	}

	return ""
}

// finish suspects the links without a record, and the cycles. All specs and all shards must have been read.
func (j *linkJudge) finish() {
	graphs := map[string]*depgraph.Graph{} // by namespace

	for _, name := range slices.Sorted(maps.Keys(j.dependents)) {
		d := j.dependents[name]
		if d.unreadable {
			continue
		}
		for _, source := range d.sources.Names() {
			if d.found[source] {
				j.checkGeneration(d, source)
				continue
			}
			key := j.keys.Subscriber(j.ref(d.ref.Namespace, source), d.ref.Name)
			j.addSuspect(kindLinkMissing.newFinding(fmt.Sprintf("task %s runs after %s, but there is no record of it", d.ref, j.ref(d.ref.Namespace, source)), key), store.Seen{Key: key}, d.spec)
		}

		if graphs[d.ref.Namespace] == nil {
			graphs[d.ref.Namespace] = depgraph.New()
		}
		for _, l := range depgraph.LinksOf(d.ref.Name, d.sources) {
			graphs[d.ref.Namespace].Add(l)
		}
	}

	for _, ns := range slices.Sorted(maps.Keys(graphs)) {
		for _, cycle := range graphs[ns].Cycles() {
			var facts []store.Seen
			var keys []string
			for _, name := range cycle[1:] {
				fact := j.dependents[ns+"/"+name].spec
				facts, keys = append(facts, fact), append(keys, fact.Key)
			}
			j.addSuspect(kindCycle.newFinding(fmt.Sprintf("tasks of namespace %s run after themselves: %s", ns, strings.Join(cycle, " -> ")), keys[:min(len(keys), maxKeys)]...), facts...)
		}
	}
}

// checkGeneration compares the generation in the record of a dependent with that of the link in its entry. If they differ, all ends of
// the source are void.
func (j *linkJudge) checkGeneration(d *dependentState, source string) {
	found, ok := d.records[source]
	at := slices.IndexFunc(d.links, func(l task.Link) bool { return l.Task == source })
	if !ok || at < 0 || d.links[at].Generation == found.generation {
		return
	}

	j.addSuspect(kindLinkMissing.newFinding(fmt.Sprintf("task %s runs after %s, but the record of it is of another generation than the link in its entry", d.ref, j.ref(d.ref.Namespace, source)),
		found.seen.Key, d.entry.Key), found.seen, d.spec, d.entry)
}

// repairLinkOrphan deletes the record of a dependent that does not run after the source.
func (r *repairer) repairLinkOrphan(ctx context.Context, request task.RepairRequest) (int64, error) {
	k, ok := r.keys.ParseShard(request.Key)
	if !ok || k.Kind != record.KindSubscriber {
		return 0, notAsFound("%s is not the record of a dependent", request.Key)
	}

	e, err := r.readAsFound(ctx, request)
	if err != nil {
		return 0, err
	}
	owner, err := r.readTask(ctx, r.ref(k.Ref.Namespace, k.Peer))
	if err != nil {
		return 0, err
	}

	if owner.spec != nil {
		_, sources, err := sourcesOf(owner.spec.Value)
		if err != nil || sources.Find(k.Ref.Name) != nil && r.ref(k.Ref.Namespace, k.Ref.Name).Shard == k.Ref.Shard {
			return 0, notAsFound("task %s/%s runs after %s, or its spec cannot be read", k.Ref.Namespace, k.Peer, k.Ref.Name)
		}
	}

	return r.deleteRecord(ctx, e, owner.seen...)
}

// repairLinkMissing writes the record of a dependent as its spec and its entry say. Ends of the source before this start nothing.
func (r *repairer) repairLinkMissing(ctx context.Context, request task.RepairRequest) (int64, error) {
	k, ok := r.keys.ParseShard(request.Key)
	if !ok || k.Kind != record.KindSubscriber {
		return 0, notAsFound("%s is not the record of a dependent", request.Key)
	}

	found, err := r.reader.readKeys(ctx, request.Key)
	if err != nil {
		return 0, err
	}
	seen := store.Seen{Key: request.Key}
	if e := found[request.Key]; e != nil {
		seen.Mod = e.ModRevision
	}
	if seen.Mod != request.Revision {
		return 0, notAsFound("%s has changed since the audit", request.Key)
	}

	dependent := r.ref(k.Ref.Namespace, k.Peer)
	owner, err := r.readTask(ctx, dependent)
	if err != nil {
		return 0, err
	}
	if owner.spec == nil || owner.entry == nil {
		return 0, notAsFound("task %s does not exist, or has no entry", dependent)
	}

	uid, sources, unreadable := sourcesOf(owner.spec.Value)
	entry, err := record.DecodeEntry(owner.entry.Value)
	source, link := sources.Find(k.Ref.Name), entry.Link(k.Ref.Name)
	if err != nil || unreadable != nil || source == nil || link == nil || uid != entry.UID || r.ref(k.Ref.Namespace, k.Ref.Name).Shard != k.Ref.Shard {
		return 0, notAsFound("the spec and the entry of task %s do not both say that it runs after %s", dependent, k.Ref.Name)
	}

	return 0, r.reader.store.RepairLink(ctx, k.Ref, dependent.Name,
		record.Subscriber{UID: uid, Generation: link.Generation, When: source.When, Results: source.Results}, append(owner.seen, seen)...)
}
