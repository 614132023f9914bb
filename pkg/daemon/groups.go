package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// groupsRecord is the file in the data directory that lists the control groups. The next daemon
// removes them if neither the daemon nor its guardian has.
const groupsRecord = "cgroups"

// openGroups opens the control groups for attempts, if the host has any. Without them, and for the first process of a
// container, it creates Orphans.
func (n *Node) openGroups() (err error) {
	if n.env.Act != nil || !slices.Contains(n.cfg.Roles, task.RoleExecutor) {
		return nil
	}

	n.groups, err = cgroup.Open(cgroup.Config{
		Setting: n.cfg.Cgroup, Node: n.cfg.Name, Instance: n.instance,
		Record: filepath.Join(n.cfg.DataDir, groupsRecord), Logger: n.log,
	})
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}

	if why := n.groups.LimitsError(); n.groups.Any() {
		n.log.Info("attempts have control groups", zap.String("cgroup", n.groups.Roots()[0]), zap.Strings("limits", n.groups.Limited()), zap.NamedError("lacks", why))
	} else {
		n.log.Info("attempts have no control groups", zap.NamedError("why", why))
	}

	// Without groups, orphans have to be adopted, so that processes that daemonize are found. The first process of a
	// container adopts all orphans in any case and has to reap them.
	if !n.groups.Any() || os.Getpid() == 1 {
		n.orphans = proctree.NewOrphans()
	}

	return nil
}
