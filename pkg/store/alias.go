package store

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The names under which records have been known to the users of this package; use
// package record instead.
type (
	Brief        = record.Brief
	Dead         = record.Dead
	EntryParts   = record.EntryParts
	Handover     = record.Handover
	Held         = record.Held
	Keys         = record.Keys
	Owner        = record.Owner
	Ref          = record.Ref
	RunKey       = record.RunKey
	SecretRecord = record.SecretRecord
	ShardKey     = record.ShardKey
	Token        = record.Token
	Tombstone    = record.Tombstone
	Watermark    = record.Watermark
)

// Likewise.
const (
	DefaultPrefix = record.DefaultPrefix

	KindDead      = record.KindDead
	KindEnded     = record.KindEnded
	KindEntry     = record.KindEntry
	KindPart      = record.KindPart
	KindQueued    = record.KindQueued
	KindRevised   = record.KindRevised
	KindWatermark = record.KindWatermark
)

// NewKeys is record.NewKeys.
func NewKeys(prefix string) (Keys, error) { return record.NewKeys(prefix) }

// ByTime is record.ByTime.
func ByTime(a, b task.Run) int { return record.ByTime(a, b) }

// DecodeAction is record.DecodeAction.
func DecodeAction(action []byte) (task.Action, error) { return record.DecodeAction(action) }

// DecodeAssigned is record.DecodeAssigned.
func DecodeAssigned(k RunKey, created int64, value []byte) (task.Assigned, error) {
	return record.DecodeAssigned(k, created, value)
}

// DecodeEnded is record.DecodeEnded.
func DecodeEnded(k ShardKey, value []byte) (task.Run, error) { return record.DecodeEnded(k, value) }

// DecodeEntry is record.DecodeEntry.
func DecodeEntry(value []byte) (task.Entry, error) { return record.DecodeEntry(value) }

// DecodeHandovers is record.DecodeHandovers.
func DecodeHandovers(keys Keys, all []*mvccpb.KeyValue) []Handover {
	return record.DecodeHandovers(keys, all)
}

// DecodeNodes is record.DecodeNodes.
func DecodeNodes(keys Keys, all []*mvccpb.KeyValue) []task.Node { return record.DecodeNodes(keys, all) }

// DecodeOwn is record.DecodeOwn.
func DecodeOwn(own []byte) (task.Own, error) { return record.DecodeOwn(own) }

// DecodeOwners is record.DecodeOwners.
func DecodeOwners(keys Keys, all []*mvccpb.KeyValue) []Owner { return record.DecodeOwners(keys, all) }

// DecodePolicy is record.DecodePolicy.
func DecodePolicy(policy string) (task.Entry, error) { return record.DecodePolicy(policy) }

// DecodeTask is record.DecodeTask.
func DecodeTask(value []byte, modRevision int64) (task.Task, error) {
	return record.DecodeTask(value, modRevision)
}

// DecodeTiming is record.DecodeTiming.
func DecodeTiming(timing string) (task.Entry, error) { return record.DecodeTiming(timing) }

// DecodeWaiting is record.DecodeWaiting.
func DecodeWaiting(k ShardKey, value []byte) (task.Waiting, error) {
	return record.DecodeWaiting(k, value)
}

// DecodeWatermark is record.DecodeWatermark.
func DecodeWatermark(value []byte) (Watermark, error) { return record.DecodeWatermark(value) }

// EncodeOwn is record.EncodeOwn.
func EncodeOwn(o *task.Own) []byte { return record.EncodeOwn(o) }

// StateOf is record.StateOf.
func StateOf(value []byte) task.State { return record.StateOf(value) }
