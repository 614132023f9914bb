package access

import "github.com/carillonhq/carillon/pkg/task"

// BuiltInUID is the uid of the roles that are part of Carillon.
const BuiltInUID = "builtin"

// The names of built-in roles that the code refers to.
const (
	RoleAdmin  = "admin"
	RoleViewer = "viewer"
)

// BuiltInRoles are the roles of every cluster. No record can replace or change them.
func BuiltInRoles() []task.Role {
	// What each role adds to the one above it.
	view := []task.Rule{{Verbs: []string{"read", "output"}, Objects: []string{"tasks", "runs"}}, {Verbs: []string{"read"}, Objects: []string{"secrets", "nodes", "cluster"}}}
	operate := append(view[:len(view):len(view)], task.Rule{Verbs: []string{"trigger", "pause", "cancel", "retry"}, Objects: []string{"tasks", "runs"}})
	edit := append(operate[:len(operate):len(operate)],
		task.Rule{Verbs: []string{"create", "update", "delete"}, Objects: []string{"tasks"}},
		task.Rule{Verbs: []string{"use", "set", "delete"}, Objects: []string{"secrets"}})
	administer := append(edit[:len(edit):len(edit)], task.Rule{Verbs: []string{"read", "grant"}, Objects: []string{"bindings"}})

	return []task.Role{
		builtIn(RoleViewer, "Reads tasks, runs and their output, and the names of secrets.", view),
		builtIn("operator", "What a viewer may do, and trigger, pause, resume, cancel, retry and dismiss.", operate),
		builtIn("editor", "What an operator may do, and create, change and delete tasks, and write and use secrets.", edit),
		builtIn("namespace-admin", "What an editor may do, and give these rights to others in the same namespaces.", administer),
		builtIn("auditor", "Reads everything, audit records and access included, but no output.", []task.Rule{{Verbs: []string{"read"}, Objects: []string{"*"}}}),
		builtIn("node-operator", "Drains, cordons and resumes nodes.", []task.Rule{{Verbs: []string{"read", "operate"}, Objects: []string{"nodes"}}, {Verbs: []string{"read"}, Objects: []string{"cluster"}}}),
		builtIn(RoleAdmin, "Everything.", []task.Rule{{Verbs: []string{"*"}, Objects: []string{"*"}}}),
	}
}

func builtIn(name, description string, rules []task.Rule) task.Role {
	return task.Role{Name: name, UID: BuiltInUID, Description: description, Rules: rules, BuiltIn: true}
}
