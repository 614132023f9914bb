package check

import "github.com/carillonhq/carillon/pkg/internal/access"

// operation is an operation of the API that writes, and what it needs at least, as its route declares it. Verb 0 leaves
// that to the change.
type operation struct {
	Route string // method and path
	Verb  access.Verb
	Kind  access.Kind
}

// operations are the operations that audit records name. The checker has its own table, so that a mistake in the
// routes of the API is not also one of the checker.
var operations = map[string]operation{
	"apply-tasks":   {Route: "POST /v1/tasks:batch"},
	"create-task":   {"POST /v1/namespaces/{ns}/tasks", access.Create, access.Tasks},
	"apply-task":    {Route: "PUT /v1/namespaces/{ns}/tasks/{name}"},
	"update-task":   {Route: "PATCH /v1/namespaces/{ns}/tasks/{name}"},
	"delete-task":   {"DELETE /v1/namespaces/{ns}/tasks/{name}", access.Delete, access.Tasks},
	"pause-task":    {"POST /v1/namespaces/{ns}/tasks/{name}/pause", access.Pause, access.Tasks},
	"resume-task":   {"POST /v1/namespaces/{ns}/tasks/{name}/resume", access.Pause, access.Tasks},
	"rollback-task": {Route: "POST /v1/namespaces/{ns}/tasks/{name}/rollback"},
	"trigger-task":  {"POST /v1/namespaces/{ns}/tasks/{name}/trigger", access.Trigger, access.Tasks},

	"cancel-run":  {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/cancel", access.Cancel, access.Runs},
	"pause-run":   {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/pause", access.Pause, access.Runs},
	"resume-run":  {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/resume", access.Pause, access.Runs},
	"retry-run":   {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/retry", access.Retry, access.Runs},
	"dismiss-run": {"POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/dismiss", access.Retry, access.Runs},

	"set-secret":    {"PUT /v1/namespaces/{ns}/secrets/{name}", access.Set, access.Secrets},
	"rotate-secret": {"POST /v1/namespaces/{ns}/secrets/{name}/rotate", access.Set, access.Secrets},
	"delete-secret": {"DELETE /v1/namespaces/{ns}/secrets/{name}", access.Delete, access.Secrets},

	"drain-node":  {"POST /v1/nodes/{node}/drain", access.Operate, access.Nodes},
	"cordon-node": {"POST /v1/nodes/{node}/cordon", access.Operate, access.Nodes},
	"resume-node": {"POST /v1/nodes/{node}/resume", access.Operate, access.Nodes},

	"set-cluster":        {"PATCH /v1/cluster", access.Operate, access.Cluster},
	"recover-cluster":    {"POST /v1/cluster/recover", access.Operate, access.Cluster},
	"set-format":         {"PUT /v1/cluster/format", access.Operate, access.Cluster},
	"freeze":             {"PUT /v1/cluster/freeze", access.Operate, access.Cluster},
	"unfreeze":           {"DELETE /v1/cluster/freeze", access.Operate, access.Cluster},
	"freeze-namespace":   {"PUT /v1/namespaces/{ns}/freeze", access.Pause, access.Tasks},
	"unfreeze-namespace": {"DELETE /v1/namespaces/{ns}/freeze", access.Pause, access.Tasks},
	"add-member":         {"POST /v1/cluster/members", access.Operate, access.Cluster},
	"remove-member":      {"DELETE /v1/cluster/members/{member}", access.Operate, access.Cluster},
	"repair":             {"POST /v1/audit:repair", access.Operate, access.Cluster},

	// What these need follows from the record that they change.
	"set-role":          {Route: "PUT /v1/roles/{role}"},
	"delete-role":       {Route: "DELETE /v1/roles/{role}"},
	"set-binding":       {Route: "PUT /v1/bindings/{binding}"},
	"delete-binding":    {Route: "DELETE /v1/bindings/{binding}"},
	"set-namespace":     {Route: "PUT /v1/namespaces/{ns}"},
	"delete-namespace":  {Route: "DELETE /v1/namespaces/{ns}"},
	"set-node-limit":    {Route: "PUT /v1/node-limits/{limit}"},
	"delete-node-limit": {Route: "DELETE /v1/node-limits/{limit}"},
	"create-token":      {Route: "POST /v1/tokens"},
	"delete-token":      {Route: "DELETE /v1/tokens/{token}"},
	"create-session":    {Route: "POST /v1/sessions"},
	"delete-session":    {Route: "DELETE /v1/sessions/current"},
	"create-login-link": {Route: "POST /v1/login-links"},
	"use-login-link":    {Route: "POST /v1/login-links:use"},
	"finish-web-login":  {Route: "POST /v1/login/web:finish"},
	"poll-device-login": {Route: "POST /v1/login/device:poll"},
	"disable-subject":   {Route: "POST /v1/subjects/{subject}/disable"},
	"enable-subject":    {Route: "POST /v1/subjects/{subject}/enable"},
	"reset-access":      {Route: "POST /v1/access/reset"},
}
