package cluster

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// expiryWarnings returns warnings about certificates that nodes have announced as expired or about to expire.
func expiryWarnings(nodes []task.Node, now time.Time) (list []task.Warning) {
	for _, n := range nodes {
		for _, e := range n.Expires {
			day := e.At.UTC().Format(time.DateOnly)

			switch left := e.At.Sub(now); {
			case left <= 0:
				list = append(list, newWarning(task.WarnCertificateExpired, "node %s: its %s expired on %s and is rejected: replace the file; the node reloads it by itself", n.Name, e.Setting, day))
			default:
				list = append(list, newWarning(task.WarnCertificateExpires, "node %s: its %s expires on %s, in %d days: replace the file; the node reloads it by itself", n.Name, e.Setting, day, int(left.Hours()/24)))
			}
		}
	}

	return list
}
