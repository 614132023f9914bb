package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// AlertPage says which page of the alerts ListAlerts reads.
type AlertPage struct {
	Shards     int      // the number of shards of the cluster
	Namespaces []string // only of these namespaces; nil: of all
	Cluster    bool     // also those about the cluster
	After      string   // what the former page returned as next; "": the first page
	Limit      int
}

const (
	// alertsOfRange is how many alerts ListAlerts reads of a range at a time. A request has up to 100 ranges, so it returns at most
	// 5,000 alerts of less than a kilobyte. Of the only range, it reads up to alertsAtOnce.
	alertsOfRange = 50
	alertsAtOnce  = 2000
	// maxAlertRanges is up to how many ranges ListAlerts reads. If there were more, it reads the alerts of all namespaces.
	maxAlertRanges = 1000
)

// ListAlerts lists a page of alerts, open and closed ones, in the order of their keys: by shard, namespace and task. next is
// the After of the next page, "" after the last one. A record that cannot be read has only what its key says.
//
// It reads key ranges of etcd, and needs no owner of a shard: when nodes are lost, the list is as complete as before. For a few namespaces, it
// reads a range for each shard and namespace, nearly all of which are empty, and nothing of other namespaces. For many, these would be
// thousands of requests. Then it reads the alerts of all namespaces, which are few compared with tasks, and drops those of others.
func (s Alerts) ListAlerts(ctx context.Context, p AlertPage) (list []task.Alert, next string, err error) {
	ranges, areFiltered := s.alertRanges(p)
	wanted := map[string]bool{}
	for _, ns := range p.Namespaces {
		wanted[ns] = true
	}

	if p.After != "" {
		after := s.keys.Alerts() + p.After
		ranges = slices.DeleteFunc(ranges, func(r keyRange) bool { return r.end <= after })
		if len(ranges) > 0 && ranges[0].from <= after {
			ranges[0].from = after + "\x00"
		}
	}

	// Of a page that is full, one more alert shows that there is a next page.
	var rev int64
	var found []*mvccpb.KeyValue
	for len(ranges) > 0 && len(found) <= p.Limit {
		some := ranges[:min(len(ranges), 100)]
		limit := alertsAtOnce
		if len(some) > 1 {
			limit = alertsOfRange
		}
		if !areFiltered {
			limit = min(limit, p.Limit+1)
		}

		ops := make([]clientv3.Op, len(some))
		for i, r := range some {
			ops[i] = clientv3.OpGet(r.from, clientv3.WithRange(r.end), clientv3.WithRev(rev), clientv3.WithLimit(int64(limit)))
		}

		res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return nil, "", fmt.Errorf("list alerts: %w: %w", task.ErrUnavailable, err)
		}
		rev = res.Header.Revision

		// A range that has more is read on before those that follow it.
		read := 0
		for _, answer := range res.Responses {
			r := answer.GetResponseRange()
			for _, e := range r.Kvs {
				if a, _, ok := s.keys.ParseAlert(string(e.Key)); !areFiltered || ok && (a.Kind == task.AlertCluster || wanted[a.Namespace]) {
					found = append(found, e)
				}
			}
			if r.More {
				some[read].from = keyAfter(r.Kvs)
				break
			}
			read++
		}
		ranges = ranges[read:]
	}

	if len(found) > p.Limit {
		found = found[:p.Limit]
		next = strings.TrimPrefix(string(found[p.Limit-1].Key), s.keys.Alerts())
	}

	return s.decodeAlerts(found), next, nil
}

// alertRanges returns the ranges of the alerts of a list, in the order of their keys. If areFiltered is set, they also contain alerts of
// other namespaces.
func (s Alerts) alertRanges(p AlertPage) (ranges []keyRange, areFiltered bool) {
	// The alerts of all shards, and then those about the cluster, are the first keys below alerts/.
	cluster := keyRange{s.keys.ClusterAlerts(), clientv3.GetPrefixRangeEnd(s.keys.ClusterAlerts())}
	areFiltered = p.Namespaces != nil && p.Shards*len(p.Namespaces) > maxAlertRanges
	if p.Namespaces == nil || areFiltered {
		all := keyRange{s.keys.Alerts(), cluster.from}
		if p.Cluster {
			all.end = cluster.end
		}

		return []keyRange{all}, areFiltered
	}

	namespaces := slices.Clone(p.Namespaces)
	for i := range namespaces {
		namespaces[i] += "/"
	}
	slices.Sort(namespaces) // "a-b/" comes before "a/"

	// Shards from 10,000 on have more digits, so their keys are not in the order of their numbers.
	shards := make([]string, p.Shards)
	for i := range shards {
		shards[i] = s.keys.AlertsIn(i)
	}
	slices.Sort(shards)

	ranges = make([]keyRange, 0, len(shards)*len(namespaces)+1)
	for _, shard := range shards {
		for _, ns := range namespaces {
			ranges = append(ranges, keyRange{shard + ns, clientv3.GetPrefixRangeEnd(shard + ns)})
		}
	}
	if p.Cluster {
		ranges = append(ranges, cluster)
	}

	return ranges, false
}

// AlertsOf returns the alerts of a task, open and closed ones.
func (s Alerts) AlertsOf(ctx context.Context, ref record.Ref) ([]task.Alert, error) {
	kvs, _, err := s.getAll(ctx, s.keys.AlertsOf(ref))
	if err != nil {
		return nil, fmt.Errorf("read the alerts of %s: %w", ref, err)
	}

	return s.decodeAlerts(kvs), nil
}

// ClusterAlert returns the alert about a problem of the cluster; task.ErrNotFound if there is none.
func (s Alerts) ClusterAlert(ctx context.Context, code string) (task.Alert, error) {
	e, err := s.getOne(ctx, s.keys.ClusterAlert(code))
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return task.Alert{}, fmt.Errorf("alert cluster:%s: %w", code, err)
	}

	return s.decodeAlerts([]*mvccpb.KeyValue{e})[0], nil
}

// AcknowledgeAlert notes who works on an alert that was read, and returns it. ref is its task; it is not used for an alert about the
// cluster. It returns task.ErrConflict if the alert has changed since.
func (s Alerts) AcknowledgeAlert(ctx context.Context, ref record.Ref, a task.Alert, mark task.AlertMark) (task.Alert, error) {
	key := s.keys.Alert(ref, a.Kind)
	if a.Kind == task.AlertCluster {
		key = s.keys.ClusterAlert(a.Code)
	}

	a.Acknowledged = &mark
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{isUnchanged(key, a.Mod)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.EncodeAlert(a))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return a, fmt.Errorf("acknowledge %s: %w", a.FullName(), err)
	}
	a.Mod = res.Revision

	return a, nil
}

// Silences returns the silences of some namespaces, in the order of these. Those of a namespace that was deleted and created again since are
// left out.
func (s Alerts) Silences(ctx context.Context, namespaces []string) ([]task.AlertSilence, error) {
	ops := make([]clientv3.Op, 0, 2*len(namespaces))
	for _, ns := range namespaces {
		prefix := s.keys.SilencesOf(ns)
		ops = append(ops, clientv3.OpGet(s.keys.Namespace(ns), clientv3.WithKeysOnly()), clientv3.OpGet(prefix, withPrefix(prefix)))
	}

	var list []task.AlertSilence
	created := int64(0)
	err := s.eachResponse(ctx, ops, func(i int, r *etcdserverpb.RangeResponse) {
		if i%2 == 0 {
			if created = 0; len(r.Kvs) > 0 {
				created = r.Kvs[0].CreateRevision
			}

			return
		}

		for _, e := range r.Kvs {
			if one, ok := record.DecodeSilence(s.keys, e); ok && one.NamespaceRev == created {
				list = append(list, one)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read silences: %w", err)
	}

	return list, nil
}

// CreateSilence writes a new silence. It returns task.ErrNotFound if there is no record of its namespace, and task.ErrConflict if that is
// deleted or created meanwhile.
func (s Alerts) CreateSilence(ctx context.Context, silence task.AlertSilence) (task.AlertSilence, error) {
	namespace := s.keys.Namespace(silence.Namespace)
	e, err := s.getOne(ctx, namespace)
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return silence, fmt.Errorf("silence alerts of namespace %s: %w", silence.Namespace, err)
	}

	silence.NamespaceRev = e.CreateRevision
	key := s.keys.Silence(silence.Namespace, silence.ID)

	return s.putSilence(ctx, silence, kv.CreateIs(namespace, e.CreateRevision), isAbsent(key))
}

// EndSilence ends a silence that was read. The record stays until the leader deletes it, so that it says who ended the silence.
func (s Alerts) EndSilence(ctx context.Context, silence task.AlertSilence, at task.Time, by *task.Actor) (task.AlertSilence, error) {
	key := s.keys.Silence(silence.Namespace, silence.ID)
	compare := isUnchanged(key, silence.Mod)
	silence.Until, silence.EndedBy = at, by

	return s.putSilence(ctx, silence, compare)
}

// putSilence writes a silence if some comparisons hold; otherwise, it returns task.ErrConflict.
func (s Alerts) putSilence(ctx context.Context, silence task.AlertSilence, compares ...clientv3.Cmp) (task.AlertSilence, error) {
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   compares,
		Then: []clientv3.Op{clientv3.OpPut(s.keys.Silence(silence.Namespace, silence.ID), record.EncodeSilence(silence))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return silence, fmt.Errorf("write silence %s/%s: %w", silence.Namespace, silence.ID, err)
	}
	silence.Mod = res.Revision

	return silence, nil
}

// AlertRules returns the rules of some namespaces, in the order of these and of their names. One that cannot be read is left out.
func (s Alerts) AlertRules(ctx context.Context, namespaces []string) ([]task.AlertRule, error) {
	ops := make([]clientv3.Op, len(namespaces))
	for i, ns := range namespaces {
		prefix := s.keys.AlertRulesOf(ns)
		ops[i] = clientv3.OpGet(prefix, withPrefix(prefix))
	}

	var list []task.AlertRule
	err := s.eachResponse(ctx, ops, func(_ int, r *etcdserverpb.RangeResponse) {
		for _, e := range r.Kvs {
			if rule, ok := record.DecodeAlertRule(s.keys, e); ok {
				list = append(list, rule)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read rules of alerts: %w", err)
	}

	return list, nil
}

// AlertRule returns a rule; task.ErrNotFound if there is none.
func (s Alerts) AlertRule(ctx context.Context, namespace, name string) (task.AlertRule, error) {
	e, err := s.getOne(ctx, s.keys.AlertRule(namespace, name))
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return task.AlertRule{}, fmt.Errorf("alert rule %s/%s: %w", namespace, name, err)
	}

	rule, ok := record.DecodeAlertRule(s.keys, e)
	if !ok {
		rule = task.AlertRule{Namespace: namespace, Name: name, Revision: e.ModRevision} // it can be replaced and deleted
	}

	return rule, nil
}

// PutAlertRule writes a rule in place of the version whose Revision it has; 0: it must be new. It returns task.ErrNotFound if there is no record
// of its namespace, and task.ErrConflict if one of them has changed.
func (s Alerts) PutAlertRule(ctx context.Context, rule task.AlertRule) (task.AlertRule, error) {
	namespace := s.keys.Namespace(rule.Namespace)
	e, err := s.getOne(ctx, namespace)
	if err == nil && e == nil {
		err = task.ErrNotFound
	}
	if err != nil {
		return rule, fmt.Errorf("namespace %s: %w", rule.Namespace, err)
	}

	key := s.keys.AlertRule(rule.Namespace, rule.Name)
	res, err := s.writeTxn(ctx, kv.Txn{
		If:   []clientv3.Cmp{kv.CreateIs(namespace, e.CreateRevision), isUnchanged(key, rule.Revision)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.EncodeAlertRule(rule))},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return rule, fmt.Errorf("write alert rule %s/%s: %w", rule.Namespace, rule.Name, err)
	}
	rule.Revision = res.Revision

	return rule, nil
}

// DeleteAlertRule deletes a rule that was read.
func (s Alerts) DeleteAlertRule(ctx context.Context, rule task.AlertRule) error {
	key := s.keys.AlertRule(rule.Namespace, rule.Name)
	res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, rule.Revision)}, Then: []clientv3.Op{clientv3.OpDelete(key)}})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("delete alert rule %s/%s: %w", rule.Namespace, rule.Name, err)
	}

	return nil
}

// SentTo returns what was sent to some receivers, in their order; nil for one to which nothing was sent.
func (s Alerts) SentTo(ctx context.Context, receivers []record.Ref) ([]*task.AlertsSent, error) {
	keys := make([]string, len(receivers))
	for i, ref := range receivers {
		keys[i] = s.keys.SentTo(ref)
	}

	list := make([]*task.AlertsSent, len(receivers))
	err := s.eachKey(ctx, keys, func(i int, e *mvccpb.KeyValue) {
		if e == nil {
			return
		}

		if sent, ok := record.DecodeSent(s.keys, e); ok {
			list[i] = &sent
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read what was sent to receivers: %w", err)
	}

	return list, nil
}
