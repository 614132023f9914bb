// Package alert decides about alerts. An alert is open while an expectation of a task is not met. Evaluate compares the records of
// a task with what is expected of it. Diff compares the alerts that are open with what a receiver has been told. Message writes the text.
//
// The package is pure: its callers read and write. Package scheduler evaluates the tasks of the shards that a node owns, and
// the leader's notifier (package daemon) sends messages.
package alert

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// KeyOf returns the key of an alert, which identifies it for receivers. It stays the same when the alert opens again and when etcd is
// restored, and differs between clusters and between a task and one that was created later under its name.
//
// Records contain the keys of all that a receiver was told (task.AlertKeys). An alert is closed by its key alone if its record is gone
// by then, so receivers get no longer key than records have.
func KeyOf(cluster string, a *task.Alert) uint64 {
	sum := sha256.Sum256([]byte(strings.Join([]string{cluster, a.Namespace, a.Task, a.UID, string(a.Kind), a.Receiver, a.Code}, "\x00")))
	return binary.BigEndian.Uint64(sum[:])
}

// FormatKey returns a key as receivers get it: 16 hexadecimal digits.
func FormatKey(key uint64) string { return fmt.Sprintf("%016x", key) }
