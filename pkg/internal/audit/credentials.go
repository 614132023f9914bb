package audit

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// credentialJudge judges tokens and secrets.
type credentialJudge struct{ judge }

// checkToken judges the record of a token.
func (j *credentialJudge) checkToken(_ context.Context, e *mvccpb.KeyValue) error {
	j.checkNoLease(e)
	var t record.Token
	if err := json.Unmarshal(e.Value, &t); err != nil {
		j.suspectUnreadable(e, "a token", err)
	}

	return nil
}

// checkSecret checks everything about a secret that can be read without a key.
func (j *credentialJudge) checkSecret(_ context.Context, e *mvccpb.KeyValue) error {
	namespace, name, ok := j.keys.ParseSecret(string(e.Key))
	if !ok {
		j.suspectStrange(e)
		return nil
	}

	j.checkNoLease(e)

	if _, err := j.keys.DecodeSecret(e); err != nil {
		j.addSuspect(kindSecret.newFinding(fmt.Sprintf("secret %s/%s cannot be read", namespace, name), string(e.Key)), seenRecord(e))
	}

	return nil
}
