package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Options say how a backup is restored.
type Options struct {
	// Work is the work directory, which only the caller can read. It should be beside the data of etcd.
	Work string

	// The settings of the node of this host: its name, its data directory, which may not exist, the prefix of the cluster's keys, and
	// whether it embeds an etcd. Members are the peer URLs of all members by name; empty if the embedded etcd is the only one.
	Node     string
	DataDir  string
	Prefix   string
	Embedded bool
	Members  map[string]string
	// AuditFile is a file with audit records, which the plan compares with the backup; empty: there is none.
	AuditFile string

	// Seen is the history of etcd that the node of this host has seen. The restored history must be later.
	Seen Seen
	// Now is the time of the restore, and Until the last moment at which the lost history may have decided ticks. NothingLost sets it to
	// the time of the backup. BackupTime is when a snapshot without a manifest was made.
	Now, Until, BackupTime time.Time
	NothingLost            bool
	By                     *task.Actor // who restores it
	SHA256                 string      // that the backup must have; empty: any

	Freeze        string // not empty: freeze the cluster, with this reason
	NoTokens      bool   // delete all tokens
	DropUnknown   bool   // delete keys of unknown kinds
	DropOtherKeys bool   // delete keys outside of the prefix
	AcceptCorrupt bool   // ignore the alarm CORRUPT

	Logger   *zap.Logger
	Progress func(step string) // is called at the begin of each step; may be nil

	// inspect, if set, is called with the content of the private etcd when it is as it will be restored.
	inspect func(context.Context, *store.Store, task.Cluster) error
	// interrupt, if set, is called at the begin of each step, which ends with its error. For tests.
	interrupt func(step string) error
}

// Seen is the history of etcd that a node has seen, from its data directory. The zero value means none.
type Seen struct {
	Cluster  string
	Epoch    int
	Revision int64
}

// beginStep reports the next step.
func (o *Options) beginStep(step string) error {
	if o.Progress != nil {
		o.Progress(step)
	}
	if o.interrupt != nil {
		return o.interrupt(step)
	}

	return nil
}

// checkWork refuses a work directory that others use, because it becomes private, and one in the data of etcd, which Install moves away.
func (o *Options) checkWork() error {
	if etcd := filepath.Join(o.DataDir, etcdDir); o.Work == etcd || strings.HasPrefix(o.Work, etcd+"/") {
		return task.Invalid(task.CodeBadValue, "work", "%s is in the data of etcd, which the restore replaces: name a directory beside %s", o.Work, o.DataDir)
	}

	info, err := os.Stat(o.Work)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	list, err := os.ReadDir(o.Work)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && len(list) > 0 {
		return task.Invalid(task.CodeBadValue, "work", "%s is not empty, and others can use it (mode %04o): name a new directory, which only you can use", o.Work, mode)
	}

	return nil
}

// checkTimes checks the times of the restore against that of the backup.
func (o *Options) checkTimes(made time.Time) error {
	switch {
	case o.Now.Before(made):
		return fmt.Errorf("the clock of this host says %s, but the backup was made at %s: set the clock first, because the revision and the epoch follow it",
			formatTime(o.Now), formatTime(made))
	case o.Until.Before(made):
		return task.Invalid(task.CodeOutOfRange, "lost-until", "%s is before the backup was made (%s): what the backup contains is not lost",
			formatTime(o.Until), formatTime(made))
	case o.Until.After(o.Now):
		return task.Invalid(task.CodeOutOfRange, "lost-until", "%s is in the future: the lost cluster has decided nothing after now (%s)",
			formatTime(o.Until), formatTime(o.Now))
	}

	return nil
}

// formatTime formats an instant for messages.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
