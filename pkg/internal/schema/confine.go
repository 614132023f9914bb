package schema

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// refineConfinement adds the allowed values of the fields that confine a process, and of its limits.
func refineConfinement(p, limits map[string]*huma.Schema) {
	groups := task.MaxGroups
	p["groups"].MaxItems, p["groups"].UniqueItems = &groups, true
	p["umask"].Pattern, p["umask"].Examples = "^0?[0-7]{1,3}$", []any{"027"}
	Within(p["nice"], task.MinNice, task.MaxNice, nil)
	p["ionice"].Pattern, p["ionice"].Examples = "^(idle|(best-effort|realtime)(/[0-7])?)$", []any{"idle", "best-effort/7"}
	setChoices(p["enforce"], task.EnforceRequire, task.EnforceRequire, task.EnforceReport)

	for _, field := range []string{"no_new_privs", "private_tmp", "scratch"} {
		p[field].Default = false
	}

	limits["cpu_time"].Pattern = durationPattern
	for field, of := range map[string]struct{ least, most float64 }{
		"open_files": {task.MinOpenFiles, task.MaxOpenFiles}, "processes": {1, task.MaxPIDs}, "pids": {1, task.MaxPIDs}, "cpu": {task.MinCPU, task.MaxCPU},
	} {
		limits[field].Minimum, limits[field].Maximum = &of.least, &of.most
	}
}
