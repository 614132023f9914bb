package restore

import (
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
)

// Host is a host on which a cluster is restored: what the settings of its agent say.
type Host struct {
	Node    string
	DataDir string
	Prefix  string
	// Embedded says that the agent runs an etcd, whose members are Members. They are empty if it is the only one. Quota is the maximum
	// size of its data; 0 if it is not known.
	Embedded bool
	Members  map[string]string
	Quota    int64
	// SecretKeys are the IDs of the keys of the host that decrypt secrets.
	SecretKeys []string
	// AuditFile is the file with audit records that the agent writes; empty if it writes none.
	AuditFile string
	// Asker asks other nodes with the certificates of this one.
	Asker *peerhistory.Asker
}

// Complete sets the options that follow from the host.
func (h *Host) Complete(o *Options, work string) {
	o.Work, o.Node, o.DataDir, o.Prefix, o.Embedded, o.Members, o.AuditFile = work, h.Node, h.DataDir, h.Prefix, h.Embedded, h.Members, h.AuditFile
}

// NewTarget returns the host as the target of an installation.
func (h *Host) NewTarget(log *zap.Logger) Target {
	return Target{Node: h.Node, Members: h.Members, DataDir: h.DataDir, Logger: log}
}
