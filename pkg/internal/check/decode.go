package check

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// decoder turns the events of a revision into a delta. A record that cannot be read it
// reports as "form", and sets in the cluster's state which records of a shard those are.
// It changes nothing else.
type decoder struct {
	*findings
	cluster *clusterState
	keys    record.Keys
}

// decodeEvents decodes the events of one revision. What cannot be read is reported and
// left out: a bad record hurts only itself.
func (dec *decoder) decodeEvents(events []Event) *delta {
	d := newDelta()
	for _, ev := range events {
		rest, ok := strings.CutPrefix(ev.Key, dec.keys.Root())
		if !ok {
			continue // not ours
		}

		dir, _, _ := strings.Cut(rest, "/")
		switch dir {
		case "nodes":
			dec.decodeNode(d, ev)
		case "leader":
			d.leaders[ev.Key] = candidate{node: string(ev.Value), create: ev.CreateRevision}
		case "owners":
			dec.decodeOwner(d, ev)
		case "tasks":
			if ns, name, ok := dec.keys.ParseSpec(ev.Key); ok {
				d.specs[record.Ref{Namespace: ns, Name: name}] = dec.decodeSpec(ev)
			}
		case "runs":
			dec.decodeAttempt(d, ev)
		case "shards":
			dec.decodeShardRecord(d, ev)
		case "cluster":
			dec.decodeCluster(d, ev)
		case "freezes":
			dec.decodeFreezes(d, ev)
		case "versions":
			dec.decodeVersion(d, ev)
		case "deleted":
			dec.decodeTombstone(d, ev)
		case "tokens", "cleared", "moves", "events", "secrets", "requests":
		default:
			dec.addNote("keys below %s are not part of the key layout", dec.keys.Root()+dir)
		}
	}

	return d
}

// reportUnreadable reports a record that cannot be read, and has its shard remember that.
func (dec *decoder) reportUnreadable(ev Event, err error) {
	dec.addViolation("form", ev.Key, "unreadable record: %v", err)
	dec.cluster.setUnreadable(ev, true)
}

func (dec *decoder) decodeCluster(d *delta, ev Event) {
	var cluster task.Cluster
	if !ev.Deleted && json.Unmarshal(ev.Value, &cluster) == nil {
		d.shardCount = cluster.Shards
	}
}

func (dec *decoder) decodeNode(d *delta, ev Event) {
	name := strings.TrimPrefix(ev.Key, dec.keys.Nodes())
	if ev.Deleted {
		d.nodes[name] = nil
		return
	}

	var n task.Node
	if err := json.Unmarshal(ev.Value, &n); err != nil {
		dec.reportUnreadable(ev, err)
	}

	d.nodes[name] = &nodeSession{
		instance: n.Instance, create: ev.CreateRevision, canOwn: n.Owns(), weight: max(n.Weight, 1),
		joinedAt: unixMS(n.Clock), freezesObeyed: n.Froze, freezesObeyedAt: unixMS(n.Clock),
	}
}

func (dec *decoder) decodeOwner(d *delta, ev Event) {
	id, ok := dec.keys.ParseOwner(ev.Key)
	if !ok {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	o := &record.Owner{Shard: id}
	if !ev.Deleted {
		if err := json.Unmarshal(ev.Value, o); err != nil {
			dec.reportUnreadable(ev, err) // its shard has a fence, and no node
		}
		o.Shard, o.Fence = id, ev.ModRevision
	}

	d.owners[id] = o
}

func (dec *decoder) decodeAttempt(d *delta, ev Event) {
	k, ok := dec.keys.ParseRun(ev.Key)
	if !ok {
		dec.addViolation("form", ev.Key, "is not the key of an attempt")
		return
	}

	r := d.runChangeOf(k.Ref, k.Run)
	if ev.Deleted {
		r.removedFrom, r.removedKey = append(r.removedFrom, k.Node), ev.Key
		return
	}

	a, err := record.DecodeAssigned(k, ev.CreateRevision, ev.Value)
	if err != nil {
		dec.reportUnreadable(ev, err)
		return
	}

	r.puts = append(r.puts, inboxPut{Assigned: a, node: k.Node, create: ev.CreateRevision, mod: ev.ModRevision, key: ev.Key})
}

func (dec *decoder) decodeShardRecord(d *delta, ev Event) {
	k, ok := dec.keys.ParseShard(ev.Key)
	if !ok {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	dec.cluster.setUnreadable(ev, false)

	switch k.Kind {
	case record.KindWatermark:
		m := &watermarkChange{key: ev.Key, mod: ev.ModRevision, create: ev.CreateRevision, deleted: ev.Deleted}
		if !ev.Deleted {
			var err error
			if m.watermark, err = record.DecodeWatermark(ev.Value); err != nil {
				dec.reportUnreadable(ev, err)
				m.unreadable = true
			}
		}

		d.watermarks[k.Ref.Shard] = m
	case record.KindRevised:
		d.revised[k.Ref.Shard] = !ev.Deleted
	case record.KindEntry:
		e := &entryChange{key: ev.Key, mod: ev.ModRevision, create: ev.CreateRevision, deleted: ev.Deleted}
		if !ev.Deleted {
			var err error
			if e.entry, err = record.DecodeEntry(ev.Value); err != nil {
				dec.addNote("entry %s cannot be read and has no ticks", k.Ref)
				dec.cluster.setUnreadable(ev, true)
				e.unreadable = true
			}
		}

		d.entries[k.Ref] = e
	case record.KindQueued:
		dec.decodeQueued(d, k, ev)
	case record.KindEnded, record.KindPart:
		dec.decodeEnded(d, k, ev)
	case record.KindDead:
		dec.decodeDeadLetter(d, k, ev)
	}
}

func (dec *decoder) decodeQueued(d *delta, k record.ShardKey, ev Event) {
	r := d.runChangeOf(k.Ref, k.Run)
	r.queueKey = ev.Key
	if ev.Deleted {
		r.dequeued = true
		return
	}

	w, err := record.DecodeWaiting(k, ev.Value)
	if err != nil {
		dec.reportUnreadable(ev, err)
		return
	}

	r.queued = &w
}

func (dec *decoder) decodeEnded(d *delta, k record.ShardKey, ev Event) {
	if ev.Deleted && k.Kind == record.KindPart {
		r := d.runChangeOf(k.Ref, k.Run)
		r.partDeleted, r.partKey = true, ev.Key
		return
	}

	if ev.Deleted {
		return // a trim, a purge, or with its task: it takes no outcome back
	}

	e, err := record.DecodeEnded(k, ev.Value)
	if err != nil {
		dec.reportUnreadable(ev, err)
		return
	}

	r := d.runChangeOf(k.Ref, k.Run)
	if k.Late {
		r.late, r.lateKey = append(r.late, e), ev.Key
		return
	}

	r.ended, r.endedKey, r.endedText = &e, ev.Key, string(ev.Value)
}

func (dec *decoder) decodeFreezes(d *delta, ev Event) {
	f := &freezeState{}
	if !ev.Deleted {
		f.mod = ev.ModRevision
		if err := json.Unmarshal(ev.Value, &f.Freezes); err != nil {
			dec.reportUnreadable(ev, err)
			f.unreadable = true
		}
	}

	d.freezes = f
}

func (dec *decoder) decodeSpec(ev Event) *specChange {
	s := &specChange{key: ev.Key, value: ev.Value}
	if ev.Deleted {
		s.value = nil
		return s
	}

	var t struct {
		UID        string `json:"uid"`
		Generation int64  `json:"generation"`
	}

	if json.Unmarshal(ev.Value, &t) == nil {
		s.uid, s.generation = t.UID, t.Generation
	}

	return s
}

func (dec *decoder) decodeVersion(d *delta, ev Event) {
	parts := strings.Split(strings.TrimPrefix(ev.Key, dec.keys.Root()+"versions/"), "/")
	if len(parts) != 3 {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	generation, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	v := &versionChange{key: ev.Key, value: ev.Value}
	if ev.Deleted {
		v.value = nil
	}

	d.versions[versionRef{record.Ref{Namespace: parts[0], Name: parts[1]}, generation}] = v
}

func (dec *decoder) decodeTombstone(d *delta, ev Event) {
	ns, name, ok := strings.Cut(strings.TrimPrefix(ev.Key, dec.keys.Tombstones()), "/")
	if !ok {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	g := &tombstoneChange{key: ev.Key, deleted: ev.Deleted}

	if !ev.Deleted {
		if err := json.Unmarshal(ev.Value, &g.tombstone); err != nil {
			dec.reportUnreadable(ev, err)
		}
	}

	d.tombstones[record.Ref{Namespace: ns, Name: name}] = g
}

func (dec *decoder) decodeDeadLetter(d *delta, k record.ShardKey, ev Event) {
	ch := &deadChange{key: ev.Key}
	if !ev.Deleted {
		var r struct {
			State task.State `json:"state"`
			By    string     `json:"dismissed_by"`
		}
		if err := json.Unmarshal(ev.Value, &r); err != nil || r.State == "" {
			dec.addViolation("form", ev.Key, "unreadable record of a dead run")
			r.State = task.Failed
		}

		ch.state, ch.by = r.State, r.By
	}

	d.dead[runRef{k.Ref, k.Run}] = ch
}
