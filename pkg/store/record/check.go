package record

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// checks decode the records of each kind (see Keys.KeyKind). Kinds without an entry have values that nobody decodes, such as keys of which
// only the mod revision matters, and the chunks of ledgers, which package ledger decodes.
var checks = map[string]func(Keys, *mvccpb.KeyValue) error{
	"cluster":            checkAs[task.Cluster],
	"nodes":              checkAs[task.Node],
	"owners":             checkAs[Owner],
	"moves":              checkAs[Handover],
	"freezes":            checkAs[task.Freezes],
	"login-key":          checkAs[LoginKey],
	"idempotency":        checkAs[Idempotency],
	"boots/nodes":        func(k Keys, e *mvccpb.KeyValue) error { return errorOf(DecodeBoot(k, e)) },
	"access/roles":       checkAs[task.Role],
	"access/bindings":    checkAs[task.Binding],
	"access/namespaces":  checkAs[task.Namespace],
	"access/nodes":       checkAs[task.NodeLimit],
	"access/tokens":      checkAs[Token],
	"access/disabled":    checkAs[Timestamp],
	"audit":              func(_ Keys, e *mvccpb.KeyValue) error { return errorOf(decodeAuditRecord(e.Value)) },
	"audit-gaps":         checkAs[task.AuditGap],
	"tasks":              checkAs[task.Task],
	"versions":           checkAs[task.Task],
	"deleted":            checkAs[Tombstone],
	"secrets":            func(k Keys, e *mvccpb.KeyValue) error { return errorOf(k.DecodeSecret(e)) },
	"rundata":            checkAs[task.RunData],
	"runs":               func(k Keys, e *mvccpb.KeyValue) error { return errorOf(DecodeHeld(k, e)) },
	"alerts/tasks":       checkAs[task.Alert],
	"alerts/cluster":     checkAs[task.Alert],
	"alerts/sent":        checkAs[task.AlertsSent],
	"alerts/rules":       checkAs[task.AlertRule],
	"alerts/silences":    checkAs[task.AlertSilence],
	"shards/tasks":       checkAs[task.Entry],
	"shards/queue":       checkShard,
	"shards/history":     checkShard,
	"shards/parts":       checkShard,
	"shards/dead":        checkShard,
	"shards/watermark":   checkShard,
	"shards/sent":        checkShard,
	"shards/triggers":    checkShard,
	"shards/subscribers": func(k Keys, e *mvccpb.KeyValue) error { _, ok, err := DecodeDependent(k, e); return orUnknown(ok, err) },
}

func checkAs[T any](_ Keys, e *mvccpb.KeyValue) error { return errorOf(Decode[T](e.Value)) }

func errorOf[T any](_ T, err error) error { return err }

func orUnknown(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("%w: the key does not have the form of its kind", task.ErrInvalid)
	}
	return err
}

// checkShard decodes a record in a shard.
func checkShard(keys Keys, e *mvccpb.KeyValue) error {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok {
		return orUnknown(false, nil)
	}

	switch k.Kind {
	case KindQueued, KindDead:
		return errorOf(DecodeWaiting(k, e.Value))
	case KindEnded, KindPart:
		return errorOf(DecodeEnded(k, e.Value))
	case KindWatermark:
		return errorOf(DecodeWatermark(e.Value))
	case KindSent:
		return errorOf(DecodeCursor(e.Value))
	case KindTrigger:
		return errorOf(DecodePending(k, e))
	}

	return nil
}

// Check decodes a record of any kind, and returns its kind and whether this version knows it. A record of an unknown kind is not decoded.
func (k Keys) Check(e *mvccpb.KeyValue) (kind string, known bool, err error) {
	kind, known = k.KeyKind(string(e.Key))
	if check := checks[kind]; check != nil && known {
		err = check(k, e)
	}

	return kind, known, err
}
