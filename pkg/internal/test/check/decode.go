package check

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// decoder converts the events of a revision to a delta. It reports a record that cannot be read as "form", and
// notes its key in the state of its shard, because that excuses or explains late decisions (G19). It changes
// nothing else.
type decoder struct {
	*findings
	cluster *clusterState
	keys    record.Keys
}

// decodeEvents decodes the events of one revision. It reports unreadable records and leaves them out, so that a
// bad record affects only itself (G19).
func (dec *decoder) decodeEvents(events []Event) *delta {
	d := newDelta()
	for _, ev := range events {
		rest, ok := strings.CutPrefix(ev.Key, dec.keys.Root())
		if !ok {
			continue // outside of the prefix
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
		case "ledger":
			dec.decodeChunk(d, ev)
		case "rundata":
			dec.decodeRunData(d, ev)
		case "cluster":
			dec.decodeCluster(d, ev)
		case "freezes":
			dec.decodeFreezes(d, ev)
		case "versions":
			dec.decodeVersion(d, ev)
		case "deleted":
			dec.decodeTombstone(d, ev)
		// Only accessJudge is concerned with these keys, which reads them itself.
		case "access", "audit", "secrets", "requests":
		case "alerts":
			dec.decodeAlert(d, ev)
		case "boots":
			dec.decodeBoot(d, ev)
		// No rule concerns these keys.
		case "cleared", "moves", "events", "idempotency", "audit-gaps", "graph":
		default:
			dec.addNote("keys below %s are not part of the key layout", dec.keys.Root()+dir)
		}
	}

	return d
}

// reportUnreadable reports a record that cannot be read, and notes it in the state of its shard.
func (dec *decoder) reportUnreadable(ev Event, err error) {
	dec.addViolation("form", ev.Key, "unreadable record: %v", err)
	dec.cluster.setUnreadable(ev, true)
}

// decodeCluster reads the cluster's record. A deleted or unreadable record leaves the known number as it is.
func (dec *decoder) decodeCluster(d *delta, ev Event) {
	var cluster task.Cluster
	if !ev.Deleted && json.Unmarshal(ev.Value, &cluster) == nil {
		d.cluster = &cluster
	}
}

// decodeNode decodes a node's key. A node whose record cannot be read counts as present, without an instance.
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
		instance: n.Instance, create: ev.CreateRevision, canOwn: n.Owns(), weight: max(n.Weight, 1), labels: n.Labels, takesRuns: n.Takes(), refusesSince: unixMS(n.Clock),
		epoch: n.Epoch, joinedAt: unixMS(n.Clock), freezesObeyed: n.Froze, freezesObeyedAt: unixMS(n.Clock),
	}
}

// decodeOwner decodes an owner key. A deleted key becomes an owner with fence 0.
func (dec *decoder) decodeOwner(d *delta, ev Event) {
	id, ok := dec.keys.ParseOwner(ev.Key)
	if !ok {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	o := &record.Owner{Shard: id}
	if !ev.Deleted {
		if err := json.Unmarshal(ev.Value, o); err != nil {
			dec.reportUnreadable(ev, err) // the shard has a fence, but no node
		}
		o.Shard, o.Fence = id, ev.ModRevision
	}

	d.owners[id] = o
}

// decodeAttempt decodes a change of an inbox record.
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

// decodeShardRecord decodes a change below shards/: a watermark, a revised key, or a record of a task or run.
func (dec *decoder) decodeShardRecord(d *delta, ev Event) {
	k, ok := dec.keys.ParseShard(ev.Key)
	if !ok {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	if k.Kind == record.KindEnded && ev.Deleted {
		ch := d.ledgerChangeOf(k.Ref)
		ch.deleted = append(ch.deleted, deletedRecord{run: k.Run, key: ev.Key, late: k.Late, unreadable: dec.cluster.shardOf(k.Ref.Shard).unreadable[ev.Key]})
	}

	// A new value, or a deletion, replaces a value that could not be read. reportUnreadable notes it again if
	// the new value cannot be read either.
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
	case record.KindSubscriber:
		dec.decodeSubscriber(d, k, ev)
	case record.KindSent:
		dec.decodeCursor(d, k, ev)
	case record.KindTrigger:
		dec.decodeTrigger(d, k, ev)
	}
}

// decodeQueued decodes a change of a queue record.
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

// decodeEnded decodes a final record: of a run, of a part, or of a late result.
func (dec *decoder) decodeEnded(d *delta, k record.ShardKey, ev Event) {
	if ev.Deleted && k.Kind == record.KindPart {
		r := d.runChangeOf(k.Ref, k.Run)
		r.partDeleted, r.partKey = true, ev.Key
		return
	}

	if ev.Deleted {
		return // a trim, a purge or a deleted task: the outcome remains, see ledgerJudge
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
	if ev.CreateRevision == ev.ModRevision || ev.Listed {
		r.endedCreate = ev.CreateRevision
	}
}

// decodeChunk decodes a change of ledger/<shard>/<ns>/<name>/<id>.
func (dec *decoder) decodeChunk(d *delta, ev Event) {
	parts := strings.Split(strings.TrimPrefix(ev.Key, dec.keys.Ledgers()), "/")
	if len(parts) != 4 {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	shard, err := strconv.Atoi(parts[0])
	if err != nil {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	c := chunkChange{id: parts[3], key: ev.Key}
	if !ev.Deleted {
		c.state = readChunk(ev.Value)
	}

	ch := d.ledgerChangeOf(record.Ref{Namespace: parts[1], Name: parts[2], Shard: shard})
	ch.chunks = append(ch.chunks, c)
}

// decodeRunData decodes a change of rundata/<shard>/<ns>/<task>/<run>.
func (dec *decoder) decodeRunData(d *delta, ev Event) {
	parts := strings.Split(strings.TrimPrefix(ev.Key, dec.keys.AllRunData()), "/")
	if len(parts) != 4 {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	shard, err := strconv.Atoi(parts[0])
	if err != nil {
		dec.addNote("key %s is not part of the key layout", ev.Key)
		return
	}

	ch := &runDataChange{key: ev.Key, create: ev.CreateRevision == ev.ModRevision}
	if !ev.Deleted {
		ch.data = &task.RunData{}
		if err := json.Unmarshal(ev.Value, ch.data); err != nil {
			dec.reportUnreadable(ev, err)
		}
	}

	d.runData[runRef{record.Ref{Namespace: parts[1], Name: parts[2], Shard: shard}, parts[3]}] = ch
}

// decodeAlert decodes a change below alerts/: an alert, or what was sent to a receiver. No rule concerns silences.
func (dec *decoder) decodeAlert(d *delta, ev Event) {
	if receiver, ok := dec.keys.ParseSentTo(ev.Key); ok {
		s := &sentChange{key: ev.Key}
		if !ev.Deleted {
			var sent task.AlertsSent
			if err := json.Unmarshal(ev.Value, &sent); err != nil {
				dec.reportUnreadable(ev, err)
			}
			s.sent = &sent
		}

		d.sent[receiver] = s

		return
	}

	if ns, name, ok := dec.keys.ParseAlertRule(ev.Key); ok {
		d.rules[ev.Key] = nil
		if !ev.Deleted {
			rule := &task.AlertRule{}
			if err := json.Unmarshal(ev.Value, rule); err != nil {
				dec.reportUnreadable(ev, err)
			}
			rule.Namespace, rule.Name = ns, name
			d.rules[ev.Key] = rule
		}

		return
	}

	a, shard, ok := dec.keys.ParseAlert(ev.Key)
	if !ok {
		return
	}

	named := a
	ch := &alertChange{key: ev.Key, ref: record.Ref{Namespace: a.Namespace, Name: a.Task, Shard: shard}}
	if !ev.Deleted {
		if err := json.Unmarshal(ev.Value, &a); err != nil {
			dec.reportUnreadable(ev, err)
		}
		a.Namespace, a.Task, a.Kind, a.Receiver, a.Code = named.Namespace, named.Task, named.Kind, named.Receiver, named.Code
		ch.alert = &a
	}

	d.alerts[ev.Key] = ch
}

// decodeBoot decodes the record of the last boot of a node. Of the keys that name tasks, only their create revisions matter.
func (dec *decoder) decodeBoot(d *delta, ev Event) {
	node, ok := strings.CutPrefix(ev.Key, dec.keys.NodeBoots())
	if !ok {
		return
	}

	ch := &bootChange{key: ev.Key}
	if !ev.Deleted {
		var b record.Boot
		if err := json.Unmarshal(ev.Value, &b); err != nil {
			dec.reportUnreadable(ev, err)
		}
		b.Node, ch.boot = node, &b
	}

	d.boots[node] = ch
}

// decodeFreezes decodes the freeze record. A deletion yields an empty state.
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

// decodeSpec reads uid and generation of a spec. The rest of it is compared as text.
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

// decodeVersion decodes a change of versions/<ns>/<name>/<generation>.
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

// decodeTombstone decodes a change of deleted/<ns>/<name>.
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

// decodeDeadLetter decodes the record of a dead-letter run: its state and who dismissed it.
func (dec *decoder) decodeDeadLetter(d *delta, k record.ShardKey, ev Event) {
	ch := &deadChange{key: ev.Key, create: ev.CreateRevision}
	if !ev.Deleted {
		var r struct {
			State task.State  `json:"state"`
			By    *task.Actor `json:"dismissed_by"`
		}
		if err := json.Unmarshal(ev.Value, &r); err != nil || r.State == "" {
			dec.addViolation("form", ev.Key, "unreadable record of a dead run")
			r.State = task.Failed
		}

		ch.state, ch.dismissed = r.State, r.By != nil
	}

	d.dead[runRef{k.Ref, k.Run}] = ch
}
