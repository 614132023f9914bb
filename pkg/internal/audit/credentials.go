package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// credentialJudge judges secrets, and the records that say who may do what.
type credentialJudge struct{ judge }

// checkAccess judges an access record: the fence, the key of token changes, a role, a binding, a namespace, a limit of nodes, a token, or a disabled
// subject. It stores those that decide which nodes can run tasks.
func (j *credentialJudge) checkAccess(_ context.Context, e *mvccpb.KeyValue) error {
	j.checkNoLease(e)
	key := string(e.Key)
	namespace, limit := &task.Namespace{}, &task.NodeLimit{}

	if subject, ok := j.keys.ParseDisabledSubject(key); ok {
		j.cluster.changes.addAccess(e, "the disabled subject "+subject)
		return nil
	}

	for _, kind := range []struct {
		prefix, what string
		value        any
	}{
		{j.keys.Fence(), "the fence of access records", &record.Fence{}},
		{j.keys.TokenChanges(), "the key of token changes", &struct{}{}},
		{j.keys.Roles(), "a role", &task.Role{}},
		{j.keys.Bindings(), "a binding", &task.Binding{}},
		{j.keys.Namespaces(), "a namespace", namespace},
		{j.keys.NodeLimits(), "a limit of nodes", limit},
		{j.keys.Tokens(), "a token", &record.Token{}},
	} {
		name, below := strings.CutPrefix(key, kind.prefix)
		isDirectory := strings.HasSuffix(kind.prefix, "/")
		if !below || (name == "") == isDirectory || strings.Contains(name, "/") {
			continue
		}

		if err := json.Unmarshal(e.Value, kind.value); err != nil {
			j.suspectUnreadable(e, kind.what, err)
		}

		if isDirectory {
			j.cluster.changes.addAccess(e, kind.what+" "+name)
		}

		switch kind.value {
		case namespace:
			j.cluster.namespaces[name] = namespace
		case limit:
			limit.Name = name
			j.cluster.limits = append(j.cluster.limits, *limit)
		}

		return nil
	}

	j.suspectUnknownKey(e)

	return nil
}

// checkSecret checks everything about a secret that can be read without a key.
func (j *credentialJudge) checkSecret(_ context.Context, e *mvccpb.KeyValue) error {
	namespace, name, ok := j.keys.ParseSecret(string(e.Key))
	if !ok {
		j.suspectUnknownKey(e)
		return nil
	}

	j.checkNoLease(e)

	j.cluster.changes.addSecret(e, fmt.Sprintf("secret %s/%s", namespace, name))

	if _, err := j.keys.DecodeSecret(e); err != nil {
		j.addSuspect(kindSecret.newFinding(fmt.Sprintf("secret %s/%s cannot be read", namespace, name), string(e.Key)), seenRecord(e))
	}

	return nil
}
