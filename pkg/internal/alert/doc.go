// Package alert decides about alerts. An alert is open while an expectation of a task is not met. Evaluate compares the records of
// a task with what is expected of it. Diff compares the alerts that are open with what a receiver has been told. Message writes the text.
//
// The package is pure: its callers read and write. Package scheduler evaluates the tasks of the shards that a node owns, and
// the leader's notifier (package daemon) sends messages.
package alert

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Key identifies an alert for receivers. It stays the same when the alert opens again and when etcd is restored, and differs
// between clusters and between a task and one that was created later under its name.
type Key [sha256.Size]byte

// KeyOf returns the key of an alert in a cluster.
func KeyOf(cluster string, a *task.Alert) Key {
	return sha256.Sum256([]byte(strings.Join([]string{cluster, a.Namespace, a.Task, a.UID, string(a.Kind), a.Receiver, a.Code}, "\x00")))
}

// String returns the first half of the key in 32 hexadecimal digits, as receivers get it.
func (k Key) String() string { return hex.EncodeToString(k[:16]) }

// Short returns the first 8 bytes, as records in etcd contain them (task.AlertKeys).
func (k Key) Short() uint64 { return binary.BigEndian.Uint64(k[:8]) }
