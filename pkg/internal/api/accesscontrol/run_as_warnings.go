package accesscontrol

import (
	"context"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

// userLookupTimeout limits how long a change of a namespace waits for the user database of this host.
const userLookupTimeout = 2 * time.Second

// warnRootUsers returns a warning for each entry of run_as that is a member of a group whose members are root in effect
// (task.IsRootGroup). groupsOf returns the names of a user's groups, and none for root and for users that this host does
// not know. Other hosts may have other members, so no warning does not mean that there are none.
func warnRootUsers(ctx context.Context, runAs []string, groupsOf func(name string) []string) []task.Warning {
	ctx, cancel := context.WithTimeout(ctx, userLookupTimeout)
	defer cancel()

	// A user database on the network may not answer.
	found, panicked := make(chan []task.Warning, 1), make(chan *callgroup.Panic, 1)
	callgroup.Start(func() {
		var list []task.Warning
		for _, name := range runAs {
			if ctx.Err() != nil {
				return
			}

			var groups []string
			for _, g := range groupsOf(name) {
				if task.IsRootGroup(g) {
					groups = append(groups, g)
				}
			}

			if len(groups) > 0 {
				list = append(list, rootUserWarning(name, groups))
			}
		}
		found <- list
	}, func(p *callgroup.Panic) { panicked <- p })

	select {
	case list := <-found:
		return list
	case p := <-panicked:
		panic(p) // it ends the request
	case <-ctx.Done():
		return nil
	}
}

// rootUserWarning is the warning about one user.
func rootUserWarning(name string, groups []string) task.Warning {
	text := fmt.Sprintf("run_as: on this host, user %s is in the group %s, so tasks of the namespace can become root", task.Quote(name), strings.Join(groups, ", "))
	if len(groups) == 1 && groups[0] == task.AdminGroup {
		text = fmt.Sprintf("run_as: on this host, user %s is in the group %s, whose members administer the cluster. Tasks do not get this group, "+
			"but what else runs as this user has it, such as its cron jobs, which a task can change", task.Quote(name), task.AdminGroup)
	}

	return task.Warning{Code: task.WarnRootUser, Text: text}
}

// hostGroupsOf returns the names of a user's groups, by the user database of this host.
func hostGroupsOf(name string) []string {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil
		}
	}
	if u.Uid == "0" {
		return nil // listing root is deliberate
	}

	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}

	var names []string
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil {
			names = append(names, g.Name)
		}
	}

	return names
}
