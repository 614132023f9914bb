// Package cluster contains the API handlers for the cluster as a whole: its status and warnings, its settings,
// freezes, the format of records, the members of an embedded etcd, audits, backups, and recovery from a restored
// snapshot.
//
// Operators read the status when something is wrong. So the status leaves out what cannot be determined,
// instead of failing.
package cluster

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the cluster and its etcd. They are safe for concurrent use.
type Handlers struct {
	Store   *store.Store
	Reader  *StatusReader // reads the status
	Cluster task.Cluster
	Ref     func(namespace, name string) record.Ref // maps a task to its shard
	Asker   *ask.Asker                              // asks the owners of the shards
	Node    string                                  // the name of this node
	Version string                                  // the version of Carillon
	Etcd    string                                  // the arguments with which etcdctl reaches an embedded etcd; else empty
	Now     httpapi.Clock
	// Writable returns an error if this node must not change anything.
	Writable func() error
	Peers    *peers.Client // forwards backups to other nodes
	Backups  Backups
	// FreezeTimeout limits how long a freeze waits for the nodes to confirm it.
	FreezeTimeout time.Duration

	// CheckStream returns why the caller may no longer read the answer. An audit may take minutes.
	CheckStream func(ctx context.Context, r *http.Request) error
	Problems    httpapi.ProblemWriter
	Log         *zap.Logger

	auditing atomic.Bool // an audit is running on this node
}

// Routes returns the operations on the cluster and its etcd.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		freeze     = reflect.TypeFor[client.FreezeStatus]()
		freezeBody = &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.FreezeRequest]()}
	)
	const get, post, put, patches, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	return []*httpapi.Operation{
		{ID: "get-cluster", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/cluster", Tag: "cluster", Summary: "Read the state of the cluster",
			Description: "The answer has the settings of the cluster, its etcd, and the warnings that an operator should look at.",
			Status:      200, Answer: reflect.TypeFor[client.ClusterStatus](), Handler: httpapi.NoQuery(h.getCluster)},
		{ID: "set-cluster", Verb: access.Operate, Kind: access.Cluster, Method: patches, Path: "/v1/cluster", Tag: "cluster", Summary: "Change settings of the cluster",
			Description: "Settings that the body omits stay as they are. Nodes apply a change within seconds.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.ClusterSettings]()}, Writes: true, Status: 200,
			Answer: reflect.TypeFor[client.ClusterSettings](), Errors: []int{409}, Handler: httpapi.NoQuery(h.setCluster)},
		{ID: "recover-cluster", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/cluster/recover", Tag: "cluster", Summary: "Recover after etcd was restored from an older snapshot",
			Description: "Increments the cluster's epoch: all nodes discard their state and reload it from etcd.",
			Writes:      true, Recovers: true, Status: 200, Answer: reflect.TypeFor[task.Cluster](), Errors: []int{409}, Handler: httpapi.NoQuery(h.recoverCluster)},
		{ID: "get-format", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/cluster/format", Tag: "cluster", Summary: "Read the record format, and what blocks a change of it",
			Description: "The record format decides which versions of Carillon can read what nodes write. The answer says which format is possible, and which node prevents a newer one.",
			Status:      200, Answer: reflect.TypeFor[client.FormatStatus](), Handler: httpapi.NoQuery(h.getFormat)},
		{ID: "set-format", Verb: access.Operate, Kind: access.Cluster, Method: put, Path: "/v1/cluster/format", Tag: "cluster", Summary: "Change the record format to the newest possible or an older one",
			Description: "0 asks for the newest format that all nodes understand, which takes effect at once. An older format takes effect when no record needs the newer one. You can then go back to an older version of Carillon.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.FormatRequest]()}, Writes: true, Status: 200,
			Answer: reflect.TypeFor[client.FormatStatus](), Errors: []int{409}, Handler: httpapi.NoQuery(h.setFormat)},
		{ID: "get-freeze", Verb: access.Read, Kind: access.Cluster, Method: get, Path: clusterFreeze, Tag: "cluster", Summary: "Read the freeze of the cluster",
			Description: "While the cluster is frozen, no run starts in any namespace. The answer has the freeze in effect, how many tasks it covers, and the nodes that have not confirmed it.", Status: 200, Answer: freeze, Handler: httpapi.NoQuery(h.getFreeze)},
		{ID: "freeze", Verb: access.Operate, Kind: access.Cluster, Method: put, Path: clusterFreeze, Tag: "cluster", Summary: "Freeze the cluster: stop all firing", Description: freezeAbout,
			Body: freezeBody, Writes: true, Status: 200, Answer: freeze, Errors: []int{409, 504}, Handler: httpapi.NoQuery(h.putFreeze)},
		{ID: "unfreeze", Verb: access.Operate, Kind: access.Cluster, Method: del, Path: clusterFreeze, Tag: "cluster", Summary: "End the freeze of the cluster",
			Description: "Runs that waited for the end of the freeze start. Ticks that were skipped meanwhile do not run.",
			Writes:      true, Status: 200, Answer: freeze, Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.deleteFreeze)},
		{ID: "get-namespace-freeze", Verb: access.Read, Kind: access.Tasks, Method: get, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Read the freeze of a namespace",
			Description: "While a namespace is frozen, none of its runs starts. The answer has the freeze in effect, how many tasks it covers, and the nodes that have not confirmed it.", Status: 200, Answer: freeze, Handler: httpapi.NoQuery(h.getFreeze)},
		{ID: "freeze-namespace", Verb: access.Pause, Kind: access.Tasks, Method: put, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "Freeze a namespace: stop its firing", Description: freezeAbout,
			Body: freezeBody, Writes: true, Status: 200, Answer: freeze, Errors: []int{409, 504}, Handler: httpapi.NoQuery(h.putFreeze)},
		{ID: "unfreeze-namespace", Verb: access.Pause, Kind: access.Tasks, Method: del, Path: httpapi.InNamespace + "/freeze", Tag: "cluster", Summary: "End the freeze of a namespace",
			Description: "Runs that waited for the end of the freeze start. Ticks that were skipped meanwhile do not run.",
			Writes:      true, Status: 200, Answer: freeze, Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.deleteFreeze)},
		{ID: "list-members", Verb: access.Read, Kind: access.Cluster, Method: get, Path: "/v1/cluster/members", Tag: "cluster", Summary: "List the etcd members",
			Description: "The list has the state of each member, its version and its alarms, as far as the members answer. They are in the order of their names.",
			Status:      200, Answer: reflect.TypeFor[client.List[client.EtcdMember]](), Handler: httpapi.NoQuery(h.listMembers)},
		{ID: "add-member", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/cluster/members", Tag: "cluster", Summary: "Add a member to the embedded etcd",
			Description: "The member votes after its agent has started with an empty data directory and --initial-cluster-state existing, and has caught up.",
			Body:        &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.AddMemberRequest]()}, Writes: true, Status: 201,
			Answer: reflect.TypeFor[client.MemberChange](), Errors: []int{409}, Handler: httpapi.NoQuery(h.addMember)},
		{ID: "remove-member", Verb: access.Operate, Kind: access.Cluster, Method: del, Path: "/v1/cluster/members/{member}", Tag: "cluster", Summary: "Remove a member from the embedded etcd permanently",
			Description: "Send the request to another node than that of the member, which cannot return with its data. The answer has the remaining members.",
			Writes:      true, Status: 200, Answer: reflect.TypeFor[client.MemberChange](), Errors: []int{409}, Handler: httpapi.NoQuery(h.removeMember)},
		{ID: "backup-cluster", Verb: access.Backup, Kind: access.Cluster, Forwarded: true, Method: get, Path: "/v1/cluster/backup", Tag: "cluster", Summary: "Make a backup of the cluster",
			Description: backupAbout, Status: 200, Streams: true, AnswerType: httpapi.TypeZstd, Errors: []int{409, 501, 507}, Handler: httpapi.NoQuery(h.serveBackup)},
		{ID: "audit", Verb: access.Read, Kind: access.Audit, Method: get, Path: "/v1/audit", Tag: "cluster", Summary: "Check the cluster's records against its guarantees (a consistency audit)",
			Description: auditAbout, Status: 200, Streams: true, Answer: reflect.TypeFor[client.AuditLine](), AnswerType: httpapi.TypeLines,
			Errors: []int{409}, Handler: httpapi.Query(h.serveAudit)},
		{ID: "repair", Verb: access.Operate, Kind: access.Cluster, Method: post, Path: "/v1/audit:repair", Tag: "cluster", Summary: "Repair findings of a consistency audit where that is safe",
			Description: "Each finding is checked again and repaired in a transaction that compares everything it read, so findings that changed since the audit are left alone. " +
				"After a failed repair, the remaining findings are not tried.",
			Body:   &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.Repairs](), Doc: "At most 100 findings, as returned by the audit."},
			Writes: true, Status: 200, Answer: reflect.TypeFor[client.List[task.RepairResult]](), Handler: httpapi.NoQuery(h.serveRepair)},
		{ID: "get-version", Method: get, Path: "/v1/version", Tag: "cluster", Summary: "Read the version of the node",
			Description: "Use it to check that a server is a node of the right cluster.",
			Status:      200, Answer: reflect.TypeFor[client.Version](), Handler: httpapi.NoQuery(h.serveVersion)},
	}
}

const freezeAbout = "Answers when the freeze is effective: no new runs are decided, and no present node starts a run. " +
	"Ticks are skipped, queued runs keep waiting, active runs continue. An existing freeze stays unchanged."

// MaxCatchUpRate is the maximum rate of late runs, in runs per second for the whole cluster.
const MaxCatchUpRate = 100_000

// setCluster serves changes of the cluster's settings. All nodes watch the cluster's record and apply them.
func (h *Handlers) setCluster(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.ClusterSettings
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	if ask.CatchUpRate != nil && (*ask.CatchUpRate < 0 || *ask.CatchUpRate > MaxCatchUpRate) {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "catch_up_rate", "%d is not between 1 and %d; 0 is the default, %d",
			*ask.CatchUpRate, MaxCatchUpRate, task.DefaultCatchUpRate)
	}

	if d := ask.LostAfter; d != nil && *d != 0 && (*d < task.MinLostAfter || *d > task.MaxLostAfter) {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "lost_after", "%s is not between %s and %s; 0s is the default, %s",
			*d, task.MinLostAfter, task.MaxLostAfter, task.DefaultLostAfter)
	}

	if d := ask.Ledger; d != nil && (*d < 0 || *d > task.MaxLedger) {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "ledger", "%s is not between 0s and %s; the default is %s",
			*d, task.MaxLedger, task.DefaultLedger)
	}

	if ask.PublicURL != nil {
		parsed, err := task.ParsePublicURL(*ask.PublicURL)
		if err != nil {
			return httpapi.Answer{}, err
		}
		ask.PublicURL = &parsed
	}

	if ask.AlertReceivers != nil {
		if err := h.checkAlertReceivers(c.Context(), *ask.AlertReceivers); err != nil {
			return httpapi.Answer{}, err
		}
	}

	var now client.ClusterSettings
	err := httpapi.RetryConflict(c.Context(), func() error {
		old, err := h.Store.Cluster(c.Context())
		if err != nil {
			return err
		}

		record := old.Cluster
		if ask.CatchUpRate != nil {
			record.CatchUpRate = *ask.CatchUpRate
		}

		if ask.LostAfter != nil {
			record.LostAfter = *ask.LostAfter
		}

		// record is compared below, so its pointer changes only with the value.
		if ask.Ledger != nil && *ask.Ledger != record.LedgerSetting() {
			record.Ledger = ask.Ledger
		}

		if ask.PublicURL != nil {
			record.PublicURL = *ask.PublicURL
		}

		if ask.AlertReceivers != nil && !slices.Equal(*ask.AlertReceivers, record.AlertReceivers) {
			record.AlertReceivers = *ask.AlertReceivers
		}

		// The answer contains the effective values, with the defaults in place of 0.
		now = client.ClusterSettings{CatchUpRate: new(record.CatchUp()), LostAfter: new(record.EffectiveLostAfter()), Ledger: new(record.LedgerSetting())}
		receivers := append([]string{}, record.AlertReceivers...)
		now.PublicURL, now.AlertReceivers = &record.PublicURL, &receivers

		if reflect.DeepEqual(record, old.Cluster) {
			return nil
		}

		return h.Store.As(c.Rights()).ChangeCluster(c.Context(), old, record.MarkChanged(c.Actor(), h.Now.Stamp(), ""))
	})

	return httpapi.Answer{Status: http.StatusOK, Body: now}, err
}

// checkAlertReceivers checks the receivers of alerts about the cluster. Whoever sets them may use the receivers of all namespaces.
func (h *Handlers) checkAlertReceivers(ctx context.Context, names []string) error {
	if err := task.CheckAlertReceivers(names); err != nil {
		return err
	}

	refs := make([]record.Ref, len(names))
	for i, name := range names {
		ns, receiver, _ := strings.Cut(name, "/")
		refs[i] = h.Ref(ns, receiver)
	}

	receivers, err := h.Store.Receivers(ctx, refs)
	if err != nil {
		return err
	}
	for i := range receivers {
		if !receivers[i].Receives() {
			return task.Invalid(task.CodeBadValue, fmt.Sprintf("alert_receivers[%d]", i), "%s is not a receiver: there is no such task, or it has no receiver block", names[i])
		}
	}

	return nil
}

// getFormat serves the format of records in force, and which formats are possible.
func (h *Handlers) getFormat(c *httpapi.Call) (httpapi.Answer, error) {
	f, err := h.Store.Formats(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	return httpapi.Answer{Status: http.StatusOK, Body: h.Reader.formatStatus(f)}, nil
}

// formatStatus describes the formats as users see them. Because names a node that prevents a newer format.
func (r *StatusReader) formatStatus(f store.Formats) client.FormatStatus {
	st := client.FormatStatus{Format: f.Cluster.InForce(), Wanted: f.Cluster.FormatWanted, WaitsFor: f.WaitsFor()}
	var because []task.Node
	if st.Possible, because = f.Possible(); st.Possible < r.Store.Understands() && len(because) > 0 {
		st.Because = fmt.Sprintf("node %s (%s)", because[0].Name, because[0].Version)
	}

	return st
}

// setFormat serves upgrades and downgrades of the record format. Format 0 requests the newest format that all
// nodes understand. An older format is only recorded as wanted; the leader puts it into force when no record
// needs the newer one.
func (h *Handlers) setFormat(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.FormatRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}

	var st client.FormatStatus
	err := httpapi.RetryConflict(c.Context(), func() error {
		f, err := h.Store.Formats(c.Context())
		if err != nil {
			return err
		}

		is := f.Cluster.InForce()
		if ask.Format < 0 || ask.Format > is {
			return task.Invalid(task.CodeOutOfRange, "format", "%d is out of range: 1 to %d, the current format, or 0 for the newest that all nodes understand", ask.Format, is)
		}

		// An upgrade takes effect at once. The format must be one that all nodes understand, and this node, too.
		to := is
		if ask.Format == 0 {
			possible, because := f.Possible()
			if possible < is {
				return httpapi.Fail(http.StatusConflict, client.CodeConflict, "node %s (%s) does not understand the current format, %d: stop it", because[0].Name, because[0].Version, is)
			}
			to = min(possible, h.Store.Understands())
		}

		if to != is || ask.Format != f.Cluster.FormatWanted {
			f.Cluster.Cluster = f.Cluster.MarkChanged(c.Actor(), h.Now.Stamp(), "")
		}

		if err := h.Store.As(c.Rights()).SetFormat(c.Context(), f, to, ask.Format); err != nil {
			return err
		}

		if f, err = h.Store.Formats(c.Context()); err == nil {
			st = h.Reader.formatStatus(f)
		}

		return err
	})

	return httpapi.Answer{Status: http.StatusOK, Body: st}, err
}

// recoverCluster serves an operator's decision to continue with the history that etcd contains now, after a
// restore.
func (h *Handlers) recoverCluster(c *httpapi.Call) (httpapi.Answer, error) {
	nodes, err := h.Store.Nodes(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	if restoredAt(nodes) == "" && h.Writable() == nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "no node reports that etcd was restored from an older snapshot, so there is nothing to recover from")
	}

	p, err := h.Store.Present(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	if !p.Found {
		return httpapi.Answer{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "etcd contains no cluster: restore it from a snapshot that contains one")
	}

	for _, n := range nodes { // a snapshot that is restored twice has an epoch older than that of the nodes
		p.Cluster.Epoch = max(p.Cluster.Epoch, n.Epoch)
	}

	now := h.Now.Stamp()
	p.Cluster = p.Cluster.MarkChanged(c.Actor(), now, "")
	next, err := h.Store.As(c.Rights()).BeginEpoch(c.Context(), p, task.Restored{At: now, By: c.Actor()})
	if err != nil {
		return httpapi.Answer{}, httpapi.About(fmt.Sprintf("epoch %d", task.NextEpoch(p.Cluster.Epoch, now.Time)), err)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: next}, nil
}

const (
	// noteTimeout is how long noteChange tries to record a change, and notePause how long it waits between two
	// attempts.
	noteTimeout = 5 * time.Second
	notePause   = 200 * time.Millisecond
)

// noteChange records who changed something that has no record of its own in etcd: the members of etcd, or
// records that a repair has deleted (G26). The change has already happened, so a failure to record it is only
// logged, with everything that the record would contain.
func (h *Handlers) noteChange(c *httpapi.Call, change string) {
	h.Log.Info("changed the cluster", zap.String("change", change), zap.Stringer("by", c.Actor()))

	// The client may have gone, and an etcd that has just lost a member may have no leader for a moment. The
	// attempts continue in both cases.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), noteTimeout)
	defer cancel()

	pause := time.NewTicker(notePause)
	defer pause.Stop()

	for {
		err := httpapi.RetryConflict(ctx, func() error { return h.recordChange(ctx, c.Actor(), change) })
		if err == nil {
			return
		}

		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
		}

		h.Log.Warn("could not record who changed the cluster", zap.String("change", change), zap.Stringer("by", c.Actor()), zap.Error(err))

		return
	}
}

// recordChange writes a change into the cluster's record. It returns task.ErrConflict if that record has
// changed.
func (h *Handlers) recordChange(ctx context.Context, actor *task.Actor, change string) error {
	old, err := h.Store.Cluster(ctx)
	if err != nil {
		return err
	}
	return h.Store.ChangeCluster(ctx, old, old.MarkChanged(actor, h.Now.Stamp(), change))
}
