package access

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/access"
)

// longHelp explains access control: "carillon help access". Its lists are made from what the server enforces.
func longHelp() string {
	var b strings.Builder

	b.WriteString(`Manage who may do what. A binding gives a role to subjects, in namespaces or in the
whole cluster. Rights only add up, and nothing denies: without a binding, a subject
may do nothing. Nobody can give more than they have.

A subject is who makes a request:
  user:NAME      a person, by a token
  service:NAME   a program, by a token
  cert:NAME      the holder of a client certificate: its URI SAN, else its common name
  unix:uid=N     a trusted user of a node's host, by its unix socket; may do everything

A token acts as a user or a service, and may have a scope that narrows what it may do.
A namespace limits what its tasks may be, regardless of who writes them: carillon namespace get.

A role is a list of rules, VERBS:KINDS. These verbs apply to these kinds of objects:

`)

	width := 0
	for _, name := range access.KindNames() {
		width = max(width, len(name))
	}
	for i, name := range access.KindNames() {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, name, strings.Join(access.Kind(i).VerbNames(), ", "))
	}

	var ofCluster []string
	for i, name := range access.KindNames() {
		if access.Kind(i).OfCluster() {
			ofCluster = append(ofCluster, name)
		}
	}
	last := len(ofCluster) - 1

	fmt.Fprintf(&b, `
%s and %s belong to the cluster: only
bindings with --cluster give rights to them. Labels limit rights to tasks and runs.
Roles, users and tokens are objects of the kind access; bindings in namespaces, and
tokens of services for namespaces, are objects of the kind bindings.

These roles are built in; carillon role create makes others:

`, upperFirst(strings.Join(ofCluster[:last], ", ")), ofCluster[last])

	width = 0
	for _, r := range access.BuiltInRoles() {
		width = max(width, len(r.Name))
	}
	for _, r := range access.BuiltInRoles() {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, r.Name, r.Description)
	}

	b.WriteString(`
carillon role get NAME shows the rules of a role, carillon whoami what you may do, and
carillon audit log who changed what.`)

	return b.String()
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
